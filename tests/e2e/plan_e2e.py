#!/usr/bin/python3
"""Goal: `ckvctl plan corpus` predicts what routes take on a real fleet, at two loads.

Method: two holders with a copy each, and agents over the C interface, first one and then two. A round calibrates the fleet,
measures the calls, and plans the load that was measured. Other work on the machine only adds to times, so the smallest p50 of
the rounds count. They must agree within a factor of 2. tests/bench/planned.py has the exact figures of an idle machine.

    python3 tests/e2e/plan_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl --plan-caller build/dev/bin/plan_caller
"""

import argparse
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from planned_fleet import LOADS, PROGRAMS, PlannedFleet, least  # noqa: E402

FACTOR = 2
# A round takes 1.5 s on an idle machine. More are made only while the bound does not hold.
ROUNDS_MAX = 8
CALLER = argparse.Namespace(path=None)


def ratios(rounds):
    """Measured over predicted p50 of each load; None if the plan serves no round's load."""
    found = {}
    for load in LOADS:
        predicted = least(rounds, load, "predicted")
        found[load] = predicted and least(rounds, load, "measured") / predicted
    return found


class PlanTest(unittest.TestCase):
    def test_routes_take_what_the_plan_predicts(self):
        with tempfile.TemporaryDirectory(prefix="ckv-plan-") as name:
            fleet = PlannedFleet(pathlib.Path(name), CALLER.path)
            self.addCleanup(fleet.stop)
            rounds = []
            for _ in range(ROUNDS_MAX):
                rounds.append(fleet.round())
                found = ratios(rounds)
                if all(one is not None and 1 / FACTOR <= one <= FACTOR for one in found.values()):
                    return
            self.fail(f"measured over predicted p50: {found}\n{rounds}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--plan-caller", required=True)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl, CALLER.path = options.ckvd, options.ckvctl, options.plan_caller
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
