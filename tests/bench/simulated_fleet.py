"""How policy auto compares with route and fetch on a simulated fleet, and how long 1,024 nodes take: `ckvctl simulate fleet`.

    python3 tests/bench/simulated_fleet.py BUILD_DIR
"""

import json
import pathlib
import sys

from paper_figures import ctl

NODES, SEEDS = 64, 5  # one seed is off by 6 %
LARGE_NODES, LARGE_REQUESTS, LARGE_LOAD = 1024, 8, 100


def compared(build, *arguments):
    """{"worst_ratio": the most of auto's mean latency over the best other policy's, "better": loads at which it is 10 %
    better, "loads": of them}"""
    found, seconds = ctl(build, "simulate", "fleet", *arguments)
    verdict = found["verdicts"][0]
    return {"worst_ratio": verdict["worst_ratio"], "better": verdict["better"], "loads": verdict["loads"], "s": seconds}


def figures(build):
    return {"fleet": compared(build, "--nodes", NODES, "--seeds", SEEDS),
            "large": compared(build, "--nodes", LARGE_NODES, "--requests", LARGE_REQUESTS, "--load", LARGE_LOAD)}


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
