#!/usr/bin/python3
"""Installs SGLang from PyPI, as far as its HiCache needs it on a CPU: an environment over vLLM's, made once.

    environment.py [--cache DIR]      prints the path of its Python

requirements.txt pins it. The cache is that of ../vllm/venv.py. It takes 1 GB there, in addition to vLLM's 5 GB.
"""

import argparse
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "vllm"), str(HERE.parents[1] / "support"), str(HERE.parents[1] / "e2e")]
import ctl_fleet  # noqa: E402
import skip  # noqa: E402
import venv as vllm_venv  # noqa: E402
import venvs  # noqa: E402
from venvs import Unavailable  # noqa: E402

PIP = "a network that reaches PyPI, and 7 GB of disk"
REQUIREMENTS = HERE / "requirements.txt"
FREE_BYTES_MIN = 2 << 30


def python(cache=None):
    """The Python that has SGLang. Raises Unavailable."""
    return venvs.python("sglang", REQUIREMENTS, FREE_BYTES_MIN, vllm_venv.python(cache), cache)


def run_test(description, test):
    """The main function of a test that needs SGLang. test(arguments, python, folder) returns its exit code."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("--ckvd", "--ckvctl", "--library"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd = arguments.ckvd
    try:
        with_sglang = python()
    except Unavailable as error:
        return skip.cannot(f"no SGLang: {error}", PIP)
    with tempfile.TemporaryDirectory(prefix="ckv-sglang-") as name:
        return test(arguments, with_sglang, pathlib.Path(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=pathlib.Path)
    try:
        print(python(parser.parse_args().cache))
    except Unavailable as error:
        return skip.cannot(f"no SGLang: {error}", PIP)
    return 0


if __name__ == "__main__":
    sys.exit(main())
