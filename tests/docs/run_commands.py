#!/usr/bin/python3
"""Goal: every command that README and the handbook show works as written.

Method: for each page a directory, three holders and a requester, on loopback, named as those of
deploy/local-fleet.sh; the blocks marked <!-- run --> run in the page's order, in one shell, in a
folder that has the tree's deploy/ and build/release/bin/. A command that fails ends its page. Ports
that a page names are replaced by free ones. ckvd checks blocks marked <!-- check-config -->. Each
flag and each setting that a page names must be in a help text or a script.

    python3 tests/docs/run_commands.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl [PAGE...]
"""

import argparse
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
import pages  # noqa: E402
from ctl_fleet import PROGRAMS, Fleet  # noqa: E402

PAGE_TIMEOUT_S = 120
HOLDER_COUNT = 3
ADDRESS = re.compile(r"127\.0\.0\.1:(\d{4,5})")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]+")
# A setting of ckvd, as the handbook names it.
KEY = re.compile(r"`((?:lane|log|metrics|oracle|replicas|requester|store|tcp|verbs)\.[a-z_]+)`")
# Flags of programs that are not ours: cmake, pkg-config, protoc, llama-server, vLLM, SGLang, LMCache.
FOREIGN_FLAGS = {"--preset", "--gtest_filter", "--gtest_repeat", "--gtest_break_on_failure", "--benchmark_filter",
                 "--workflow", "--install", "--prefix", "--component", "--libs",
                 "--cflags", "--python_out", "--grpc_out", "--plugin", "--rope-freq-base",
                 "--slot-save-path", "--cache-reuse", "--context-shift", "--system-site-packages",
                 "--kv-transfer-config", "--kv-events-config", "--otlp-traces-endpoint", "--shm-name", "--model-path",
                 "--page-size", "--enable-hierarchical-cache", "--hicache-storage-backend",
                 "--hicache-storage-backend-extra-config", "--hicache-mem-layout"}


class PageFleet(Fleet):
    """A directory, holder-1 to holder-3 and a requester."""

    def __init__(self, folder):
        super().__init__(folder, holders=0)
        for i in range(1, HOLDER_COUNT + 1):
            self.start(f"holder-{i}", "--role=holder", f"--directory={self.directory}",
                       "--store-capacity=256MiB")


def free_port(_match, taken={}):
    """Replaces a port by a free one, which is the same for each use of a port."""
    number = _match.group(1)
    if number not in taken:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            taken[number] = probe.getsockname()[1]
    return f"127.0.0.1:{taken[number]}"


def lay_out(folder):
    """Creates the folder in which a page's commands run, with the programs and the scripts."""
    programs = folder / "build/release/bin"
    programs.mkdir(parents=True)
    for program in (PROGRAMS.ckvd, PROGRAMS.ckvctl):
        (programs / pathlib.Path(program).name).symlink_to(pathlib.Path(program).resolve())
    for name in ("deploy", "proto", "tests"):
        (folder / name).symlink_to(ROOT / name)


def script_of(blocks):
    """One shell script of all blocks, which writes the line of each block to .at before it runs."""
    text = "set -euo pipefail\n"
    for block in blocks:
        code = ADDRESS.sub(free_port, block.code)
        text += f"echo {block.line} > .at\n{code}\n"
    return text


def run_page(page, blocks):
    """The error of a page, or None."""
    with tempfile.TemporaryDirectory(prefix="ckv-docs-") as name:
        folder = pathlib.Path(name)
        (folder / "fleet").mkdir()
        (folder / "work").mkdir()
        lay_out(folder / "work")
        fleet = PageFleet(folder / "fleet")
        try:
            return run_script(page, script_of(blocks), folder / "work", fleet)
        finally:
            fleet.stop()


def run_script(page, script, folder, fleet):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
    # A page's python3 is the interpreter of this test, even if another one is first on PATH.
    tools = folder.parent / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "python3").chmod(0o755)
    env.update(CKV_REQUESTER=fleet.requester, CKV_DIRECTORY=fleet.directory, PATH=f"{tools}:{env['PATH']}")
    log = folder / ".log"
    with log.open("wb") as out:
        shell = subprocess.Popen(["bash", "-c", script], cwd=folder, env=env, stdout=out, stderr=out,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = shell.wait(PAGE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = f"nothing after {PAGE_TIMEOUT_S} s"
        try:
            os.killpg(shell.pid, signal.SIGKILL)  # what the page left in the background
        except ProcessLookupError:
            pass
        shell.wait()
    if code == 0:
        return None
    at = (folder / ".at").read_text().strip()
    tail = "\n".join(log.read_text(errors="replace").split("\n")[-25:])
    return f"{page}:{at}: the commands from here end with {code}:\n{tail}"


def check_config(page, block):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(block.code)
        file.flush()
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        run = subprocess.run([PROGRAMS.ckvd, "--config", file.name, "--check-config"], env=env,
                             capture_output=True, text=True, timeout=30)
    return None if run.returncode == 0 else f"{page}:{block.line}: {run.stderr.strip()}"


def help_texts():
    """The help of ckvd, of ckvctl and all its commands, and the text of the scripts."""
    def ask(program, *arguments):
        return subprocess.run([program, *arguments, "--help"], capture_output=True, text=True,
                              timeout=30, check=True).stdout

    def commands(words):
        text = ask(PROGRAMS.ckvctl, *words)
        section = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.M)
        for name in re.findall(r"^  (\w+) ", section.group(1), re.M) if section else []:
            text += commands([*words, name])
        return text

    scripts = [path for folder, names in (("deploy", "*.sh"), ("deploy", "*.py"), ("tests", "*.sh"), ("tests", "*.py"),
                                          ("tests/docs", "links.py"))
               for path in (ROOT / folder).glob(names)]
    return ask(PROGRAMS.ckvd) + commands([]) + "".join(path.read_text() for path in scripts)


def check_names(page, text, helps):
    flags, settings = set(FLAG.findall(helps)), set(re.findall(r"[a-z_]+\.[a-z_]+", helps))
    for number, line in enumerate(text.split("\n"), 1):
        for flag in FLAG.findall(line.replace("<!--", "").replace("-->", "")):
            if flag not in flags and flag not in FOREIGN_FLAGS:
                yield f"{page}:{number}: no program of ours has {flag}"
        for key in KEY.findall(line):
            if key not in settings:
                yield f"{page}:{number}: no setting of ckvd is {key}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    PROGRAMS.ckvd = str(pathlib.Path(arguments.ckvd).resolve())
    PROGRAMS.ckvctl = str(pathlib.Path(arguments.ckvctl).resolve())

    helps = help_texts()
    errors, threads = [], []
    run_count = 0
    for page in arguments.pages or pages.manual(ROOT):
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks, wrong = pages.blocks(text)
        errors += [f"{page}:{line}: {what}" for line, what in wrong]
        errors += check_names(page, text, helps)
        errors += filter(None, (check_config(page, b) for b in filter(pages.is_configuration, blocks)))
        runs = [block for block in blocks if block.mark == "run"]
        run_count += len(runs)
        if runs:
            threads.append(threading.Thread(
                target=lambda page=page, runs=runs: errors.append(run_page(page, runs))))
            threads[-1].start()
    for thread in threads:
        thread.join()
    errors = [error for error in errors if error is not None]
    print("\n".join(errors + [f"docs: {run_count} blocks of commands ran, {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
