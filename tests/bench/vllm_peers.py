"""Compares the plug-in with LMCache and NIXL, each in stock vLLM (tests/engines/vllm/peers.py), for `bars.py vllm`."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engines/vllm"))
import peers  # noqa: E402
import stock  # noqa: E402
import venv  # noqa: E402
from bar import NOT_HERE  # noqa: E402


def figures(build):
    """{case: {figure: value}, "failed": {peer: why}}."""
    if not stock.has_headers():
        return {NOT_HERE: stock.NO_HEADERS}
    try:
        return peers.figures(build)
    except venv.Unavailable as error:
        return {NOT_HERE: f"no stock vLLM: {error}"}
