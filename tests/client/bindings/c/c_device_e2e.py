#!/usr/bin/python3
r"""Goal: a C program computes with a GPU library next to libckv.so, from that GPU's memory and to it.
A library that cannot be used is reported, and never used in part.

Method: libckv.so and a program in folders laid out as an install, next to libraries of tests/support/stand_in,
which compute on the processor but report a GPU. The answers equal those from host memory.

    python3 tests/client/bindings/c/c_device_e2e.py --ckvd ... --ckvctl ... --library libckv.so.1 --stand-ins FOLDER c_device
"""

import argparse
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "e2e"))
from ctl_fleet import PROGRAMS, Fleet, Rows  # noqa: E402

TOKENS, CHUNK_TOKENS = 100, 24
CORPUS = "c-device"
TIMEOUT_S = 120
NOWHERE = "127.0.0.1:1"  # opening does not wait for a directory


class Install:
    """A folder with the program and libckv.so.1. If `stand_in` is set, also with that GPU library, in `place`."""

    def __init__(self, arguments, folder, stand_in="", place="."):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=folder))
        self.program = self.root / arguments.program.name
        for path, name in ((arguments.program, self.program.name), (arguments.library, "libckv.so.1")):
            try:
                os.link(path.resolve(), self.root / name)
            except OSError:  # another file system
                shutil.copy(path.resolve(), self.root / name)
        self.gpu = self.root / place / "libckv_cuda.so"
        if stand_in:
            self.gpu.parent.mkdir(exist_ok=True)
            shutil.copy(arguments.stand_ins / stand_in / "libckv_cuda.so", self.gpu)

    def run(self, *words):
        done = subprocess.run([str(word) for word in (self.program, *words)], text=True, capture_output=True,
                              timeout=TIMEOUT_S)
        if done.returncode != 0:
            sys.exit(f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def expect(self, backend, code, *texts, target=""):
        """Checks the code that opening a requester with `backend` returns, and the texts that it reports."""
        got = self.run("open", NOWHERE, backend, target)
        if not got.startswith(code + " ") or any(text not in got for text in texts):
            sys.exit(f"backend {backend!r}: {got}\n{code} and {texts} expected")


def check_choices(arguments, folder):
    plain = Install(arguments, folder)
    for name in ("", "cpu"):
        plain.expect(name, "OK", "backend cpu: ")
    plain.expect("", "OK", "it is the default")
    plain.expect("rocm", "INVALID_ARGUMENT", "rocm", "auto, cpu and cuda")
    plain.expect("auto", "OK", "backend cpu: there is no", f"{plain.root}/libckv_cuda.so")
    plain.expect("cuda", "NOT_FOUND", f"{plain.root}/libckv_cuda.so", f"{plain.root}/ckv/libckv_cuda.so")
    for stand_in, place in (("reaches_host", "."), ("reaches_host", "ckv"), ("works", ".")):
        found = Install(arguments, folder, stand_in, place)
        told = f"backend cuda: {found.root / place}/libckv_cuda.so"
        for name in ("cuda", "auto"):
            found.expect(name, "OK", told, "kernels CUDA_SM90")
        found.expect("cpu", "OK", "backend cpu: ")
        found.expect("", "OK", "it is the default")
        found.expect("auto", "OK", "backend cpu: kernel_target names SSE4", target="SSE4")
    for stand_in, why in (("other_build", "it is of build ckv 0.0.1"), ("no_device", "the driver finds 0 devices"),
                          ("no_module", "it is no backend of ckv")):
        refused = Install(arguments, folder, stand_in)
        refused.expect("cuda", "FAILED_PRECONDITION", "backend cuda", why)
        refused.expect("auto", "OK", "backend cpu: a GPU is not used", why)


def check_answers(arguments, folder):
    fleet = Fleet(folder, holders=2)
    try:
        rows = Rows(seed=5, tokens=TOKENS, position=0)
        rows.write(folder / "rows.safetensors")
        (folder / "tokens").write_bytes(struct.pack(f"<{TOKENS}i", *rows.token_ids))
        subprocess.run([arguments.ckvctl, "--directory", fleet.directory, "corpus", "load", CORPUS,
                        folder / "rows.safetensors", "--chunk-tokens", str(CHUNK_TOKENS)], check=True,
                       stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        for stand_in in ("reaches_host", "works"):
            install = Install(arguments, folder, stand_in)
            print(stand_in, install.run("attend", fleet.directory, CORPUS, install.gpu))
    finally:
        fleet.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--stand-ins", type=pathlib.Path, required=True)
    parser.add_argument("program", type=pathlib.Path)
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    with tempfile.TemporaryDirectory() as name:
        check_choices(arguments, pathlib.Path(name).resolve())
        check_answers(arguments, pathlib.Path(name).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
