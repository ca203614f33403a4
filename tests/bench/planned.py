"""What routes take on a real fleet beside what `ckvctl plan corpus` predicts for the same load: tests/support/planned_fleet.py.

    python3 tests/bench/planned.py BUILD_DIR
"""

import json
import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from planned_fleet import LOADS, PROGRAMS, PlannedFleet, least  # noqa: E402

ROUNDS = 6


def figures(build):
    """{load: {"p50": measured over predicted, "p99": the same, "us": the p50 measured, "utilisation": of a kernel}}"""
    build = build.resolve()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = build / "bin/ckvd", build / "bin/ckvctl"
    with tempfile.TemporaryDirectory(prefix="ckv-planned-") as name:
        fleet = PlannedFleet(pathlib.Path(name), build / "bin/plan_caller")
        try:
            rounds = [fleet.round() for _ in range(ROUNDS)]
        finally:
            fleet.stop()
    found = {}
    for load in LOADS:
        one = {quantile: least(rounds, load, "measured", f"{quantile}_us") / least(rounds, load, "predicted", f"{quantile}_us")
               for quantile in ("p50", "p99")}
        found[load] = {**one, "us": least(rounds, load, "measured"), "utilisation": least(rounds, load, "predicted", "utilisation")}
    print(f"planned: {json.dumps(rounds)}", file=sys.stderr)
    return found


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
