#!/usr/bin/python3
r"""Goal: Python programs get the same bits from a fleet as the C++ client, with the wheel alone.

Method: builds the wheel and installs it into a new folder, from which all programs import it. Then starts
a directory, two holders and a corpus of several chunks. py_client.py makes the calls of the C++ program;
the files of answers are equal. calls_check.py publishes, finds and fetches; shares memory with torch; makes
wrong calls; and waits in a call while the holders are stopped, until another Python thread resumes them.
ckvctl status shows a program that announces itself until it is killed. device_check.py has its arrays on
a stand-in of a GPU, whose library is next to another libckv.so.1.

    python3 tests/client/bindings/python/python_e2e.py --ckvd ... --ckvctl ... --reference cc_client \
        --library libckv.so.1 --stand-ins FOLDER --cmake cmake
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "support"))
import skip  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from ctl_fleet import PROGRAMS, Fleet, Rows  # noqa: E402

TOKENS, CHUNK_TOKENS = 100, 24
CORPUS = "python"
VERSION = "1.2.3"
TIMEOUT_S = 120


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=TIMEOUT_S, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}\nexit {done.returncode}\n{done.stdout}")
    return done.stdout


def install(cmake, folder):
    """Builds the wheel, installs it, and returns the folder to import it from."""
    run(cmake, f"-DVERSION={VERSION}", f"-DSOURCE={ROOT / 'client/bindings/python'}", f"-DOUTPUT={folder / 'wheel'}",
        f"-DPYTHON={sys.executable}", "-P", ROOT / "client/bindings/python/wheel.cmake")
    wheel = folder / f"wheel/ckv-{VERSION}-py3-none-any.whl"
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index",
        "--no-deps", "--no-cache-dir", "--target", folder / "site", wheel)
    return folder / "site"


def check_library(env):
    """If the library is missing, the error lists what was tried, and the package that has it."""
    code = ("import ckv\ntry:\n  ckv.open('127.0.0.1:1')\nexcept ckv.LibraryError as error:\n  print(error)\n"
            "  raise SystemExit(0)\nraise SystemExit('a library was found')")
    said = run(sys.executable, "-c", code, env={**env, "CKV_LIBRARY": "/no/such/file"})
    if not all(word in said for word in ("/no/such/file (CKV_LIBRARY)", "libckv1")):
        sys.exit(f"the error without a library: {said}")


def check_device(arguments, folder, directory, env):
    """Runs with its own copy of the library, which has a GPU library in the folder below."""
    (folder / "ckv").mkdir(parents=True)
    shutil.copy(arguments.library, folder / "libckv.so.1")
    gpu = shutil.copy(arguments.stand_ins / "reaches_host/libckv_cuda.so", folder / "ckv")
    return run(sys.executable, HERE / "device_check.py", directory, CORPUS, gpu,
               env={**env, "CKV_LIBRARY": str(folder / "libckv.so.1")})


def check_engine(directory, env):
    """`ckvctl status` shows a program that announces itself until it ends, even if it is killed."""
    code = ("import sys, ckv\nwith ckv.open(sys.argv[1], name='engine', announce='m1', announce_rank=1,\n"
            "              announce_rank_count=2, check=10), ckv.open(sys.argv[1], check=10):\n"
            "  print('open', flush=True)\n  sys.stdin.read()")

    def until(count):
        end = time.monotonic() + 20
        while time.monotonic() < end:  # each run of the command takes a while
            engines = json.loads(run(PROGRAMS.ckvctl, "--directory", directory, "status", "-o", "json"))["engines"]
            if len(engines) == count:
                return engines
        sys.exit(f"{len(engines)} engines in ckvctl status, {count} expected: {engines}")

    engine = subprocess.Popen([sys.executable, "-c", code, directory], env=env, text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    try:
        if engine.stdout.readline() != "open\n":
            sys.exit("the engine did not start")
        (shown,) = until(1)
        told = [shown[key] for key in ("name", "host", "pid", "model", "rank", "rank_count")]
        if told != ["engine", socket.gethostname(), engine.pid, "m1", 1, 2]:
            sys.exit(f"ckvctl status shows {shown}")
    finally:
        engine.kill()
        engine.wait()
    until(0)
    run(PROGRAMS.ckvctl, "--directory", directory, "health")
    print("an engine is shown while it runs")


def difference(got, want):
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    return f"{len(got)} bytes, {len(want)} expected; the first difference is at byte {at}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--stand-ins", type=pathlib.Path, required=True)
    parser.add_argument("--cmake", default="cmake")
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    skip.needs("numpy", "torch", "pip", "setuptools", "wheel")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        site = install(arguments.cmake, folder)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("CKV_", "PYTHON"))}
        env.update(PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1", CKV_LIBRARY=arguments.library)
        check_library(env)
        fleet = Fleet(folder, holders=2)
        try:
            Rows(seed=5, tokens=TOKENS, position=0).write(folder / "rows.safetensors")
            run(PROGRAMS.ckvctl, "--directory", fleet.directory, "corpus", "load", CORPUS,
                folder / "rows.safetensors", "--chunk-tokens", CHUNK_TOKENS)
            run(arguments.reference, fleet.directory, CORPUS, folder / "want")
            run(sys.executable, HERE / "py_client.py", fleet.directory, CORPUS, folder / "got", env=env)
            want, got = (folder / "want").read_bytes(), (folder / "got").read_bytes()
            if got != want:
                sys.exit(f"py_client.py: {difference(got, want)}")
            print(f"{len(want)} bytes of answers, as the C++ client's")
            # The directory was started first, then the holders.
            print(run(sys.executable, HERE / "calls_check.py", fleet.directory, CORPUS,
                      *[process.pid for process in fleet.processes[1:3]], env=env), end="")
            check_engine(fleet.directory, env)
            print(check_device(arguments, folder.resolve() / "device", fleet.directory, env), end="")
        finally:
            fleet.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
