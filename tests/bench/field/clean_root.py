#!/usr/bin/python3
"""Both commands of the README on a bare machine: Debian 12, git, and a python3 without numpy first on PATH.

    tests/bench/field/clean_root.py     (root; an hour and more on two cores, 12 GB below $TMPDIR)
"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parent))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from bar import NOT_HERE  # noqa: E402
from priority import usual_priority  # noqa: E402
from root import Cannot, CleanRoot  # noqa: E402

LIMIT_S = 3 * 3600  # of each command, on a machine that also does other work
COUNTS = re.compile(r"^(\S+): (\d+) passed, (\d+) failed, (\d+) flaky, (\d+) skipped", re.M)
UNNAMED = re.compile(r"^ERROR: a skip does not say what would run it: .*", re.M)
TOLD = "== outcome\n"  # the last lines of tests/run.sh follow it


@usual_priority()
def figures(_build):
    """{"commands": exits, counts of tests and times}, or why there are none."""
    try:
        return {"commands": run_both()}
    except Cannot as why:
        return {NOT_HERE: str(why)}


def run_both():
    """Runs both commands in a clean root; prints what was skipped, and where the logs are. Returns {figure: value}."""
    with CleanRoot() as root:
        root.other_python()
        tree = root.clone()
        quick = root.run(f"cd {tree} && deploy/quickstart.sh", LIMIT_S, root.logs / "quickstart")
        print(f"clean_root: deploy/quickstart.sh: exit {quick.code} after {quick.seconds:.0f} s", file=sys.stderr, flush=True)
        tests = root.run(f"cd {tree} && tests/run.sh", LIMIT_S, root.logs / "tests")
        print(f"clean_root: tests/run.sh: exit {tests.code} after {tests.seconds:.0f} s", file=sys.stderr, flush=True)
    told = tests.text().rpartition(TOLD)[2]
    print(f"{told}clean_root: logs are in {root.logs}", file=sys.stderr, flush=True)
    # Without the last lines, no test counts as passed.
    counts = [tuple(map(int, found[1:])) for found in COUNTS.findall(told)] or [(0, 1, 0, 0)]
    return {
        "bad_exits": sum(ran.code != 0 for ran in (quick, tests)),
        "passed": sum(row[0] for row in counts), "failed": sum(row[1] for row in counts),
        "skipped": sum(row[3] for row in counts), "unnamed": len(UNNAMED.findall(told)),
        "quickstart_s": quick.seconds, "tests_s": tests.seconds}


def main():
    try:
        got = run_both()
    except Cannot as why:
        sys.exit(f"clean_root: {why}")
    for name, value in got.items():
        print(f"{name}: {value:.0f}")
    return 0 if got["bad_exits"] == got["failed"] == got["unnamed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
