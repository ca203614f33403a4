"""Helpers shared by tests of deploy: checks that wait. Tests that run as root on the machine of machine.sh
also use its services, and a corpus whose answers have bits to compare."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from ctl_fleet import D_QK, Rows, bf16, write_safetensors  # noqa: E402

DEPLOY = HERE.parent.parent / "deploy"
CONFIG = pathlib.Path("/etc/ckv/ckvd.yaml")
PATIENCE_S = 60
TOKENS = 96
ALL_UNITS = ("ckvd-directory.service", "ckvd-holder@a.service", "ckvd-requester@a.service")


class Failed(Exception):
    """A check failed. The text names it."""


def check(holds, what):
    if not holds:
        raise Failed(what)


def step(text):
    print(f"-- {text}", flush=True)


def run(*command, code=0, **options):
    """The output of a command that must end with `code`."""
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=300, **options)
    if done.returncode != code:
        raise Failed(f"{' '.join(str(p) for p in command)}\nexit {done.returncode}, not {code}\n{done.stdout}")
    return done.stdout


def show(unit, name):
    return run("systemctl", "show", "--value", "-p", name, unit).strip()


def journal(unit, *more):
    run("journalctl", "--sync")
    return run("journalctl", "--no-pager", "-o", "cat", "-u", unit, *more)


def wait_until(what, holds):
    """Polls `holds` until it is true: the machine's units change by themselves."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise Failed(f"after {PATIENCE_S} s still not: {what}")
        time.sleep(0.05)


def install_units(programs, config):
    """Installs the programs of a build, the tree's units and a configuration where the package puts them."""
    for name, path in programs.items():
        shutil.copy(path, f"/usr/bin/{name}")
    for unit in (DEPLOY / "systemd").glob("*.service"):
        shutil.copy(unit, "/usr/lib/systemd/system")
    run("systemd-sysusers", DEPLOY / "debian" / "ckvd.sysusers")
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(config)
    run("systemctl", "daemon-reload")


def wait_active(*units):
    for unit in units:
        wait_until(f"{unit} is active", lambda: show(unit, "ActiveState") == "active")


class Corpus:
    """A corpus of one file, and a query whose partial depends on the corpus' bits."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = folder / "rows.safetensors"
        Rows(seed=1, tokens=TOKENS, position=0).write(self.rows)
        self.query = folder / "query.safetensors"
        values = b"".join(bf16(0.25 * (i % 7) - 0.5).to_bytes(2, "little") for i in range(4 * D_QK))
        write_safetensors(self.query, {"q": ("BF16", [4, D_QK], values)})

    def load(self):
        run("ckvctl", "corpus", "load", "kept", self.rows, "--chunk-tokens", TOKENS // 4)

    def bits(self):
        out = self.folder / "partial.safetensors"
        out.unlink(missing_ok=True)
        run("ckvctl", "--wait", "30s", "attend", "--corpus", "kept", "--layer", 0, "--queries", self.query,
            "--out", out, "--wire", "f32")
        return out.read_bytes()

    def await_same_bits(self, bits):
        """Waits for the same answer as before. Lanes reconnect after a restart, so the first try may fail."""
        def same():
            try:
                return self.bits() == bits
            except Failed:
                return False
        wait_until("the corpus answers with the same bits", same)


def status():
    return json.loads(run("ckvctl", "--wait", "30s", "status", "-o", "json"))


def main(test):
    """Runs test(folder). If it fails, prints the journal and returns 1."""
    folder = pathlib.Path("/run/ckv-test")
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        test(folder)
    except Failed as failure:
        print(failure, file=sys.stderr)
        print(subprocess.run(["journalctl", "--no-pager", "-n", "80"], text=True, capture_output=True).stdout,
              file=sys.stderr)
        return 1
    return 0
