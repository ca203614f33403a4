#!/usr/bin/python3
"""Goal: in stock vLLM, requests attend corpora on their holders, load them, and publish them, as exactly as
vLLM itself computes. No failure affects other requests.

Method: vLLM 0.32.0 for CPUs from PyPI, a model of 4 layers with V2-Lite's widths of attention and random weights of a
real scale, three holders. engine.py runs in vLLM's process. Each answer's logprobs are compared with the same model
in float32: the error must not be above vLLM's own. walk.py drives vLLM's scheduler at random.

vLLM is downloaded from PyPI (venv.py). If it is unavailable, this is SKIPPED: exit code 77.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import stock  # noqa: E402
import ctl_fleet  # noqa: E402
import skip  # noqa: E402
import venv  # noqa: E402

LAYERS = 4
TIMEOUT_S = 500  # a minute on an idle machine
WALK_STEPS = 20000


def run(one, case):
    model = one.model(LAYERS)
    if case == "walk":
        return subprocess.run([one.python, stock.HERE / "walk.py", "--model", model, "--steps", str(WALK_STEPS)],
                              env=one.environment, timeout=TIMEOUT_S, check=False).returncode
    with stock.fleet(cached=case == "ranks") as fleet:
        return one.run("engine.py", case, model, fleet, TIMEOUT_S).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--ckvd", "--ckvctl", "--library"):
        parser.add_argument(name, required=True)
    parser.add_argument("--version", help="of vLLM; by default the pinned one")
    parser.add_argument("cases", nargs="*", default=["walk", "all", "few-blocks", "ranks"])
    arguments = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    if not stock.has_headers():
        return skip.lacks(stock.NO_HEADERS)
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as name:
        try:
            one = stock.Stock(pathlib.Path(name), arguments.library, arguments.version)
        except venv.Unavailable as error:
            return skip.cannot(f"no stock vLLM: {error}", venv.PIP)
        return max(run(one, case) for case in arguments.cases)


if __name__ == "__main__":
    sys.exit(main())
