#!/usr/bin/python3
"""Goal: no place that reports health reports a faulty fleet as healthy, or a healthy one as faulty.

Method: real processes and Debian's Prometheus. Reads each place that reports while the fleet is healthy, and again
after each of three faults, which need no root. Without Prometheus, exits with 77 and the reason. The long form,
tests/bench/field/health_matrix.py, has all faults.

    python3 tests/e2e/health_matrix_e2e.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "bench/field"), str(TESTS / "bench"), str(TESTS / "support")]
import faults
import health_matrix
import reporters
import skip
from ctl_fleet import PROGRAMS

SAYS_S = 60  # on a machine that may be busy
# One of each kind: of the directory, of a requester, of a holder's disk. Each reporter can see at least one.
MADE = (faults.directory_restarted, faults.other_fleet, faults.damaged)


class HealthMatrixTest(unittest.TestCase):
    def test_reporters_report_a_fault_and_nothing_else(self):
        chosen = [fault for fault in faults.FAULTS if fault.make in MADE]
        self.assertEqual(len(chosen), len(MADE))
        self.assertEqual({name for fault in chosen for name in reporters.NAMES if name not in fault.blind}, set(reporters.NAMES))
        for fault in chosen:
            with self.subTest(fault=fault.name), tempfile.TemporaryDirectory(prefix="ckv-health-matrix-") as folder:
                fleet = health_matrix.Tried(pathlib.Path(folder), fault.replicas, users=False, **fault.shape)
                try:
                    self.try_fault(fleet, fault)
                finally:
                    fleet.stop()

    def try_fault(self, fleet, fault):
        for look in (health_matrix.settle, health_matrix.all_well):
            for name, (well, said) in look(fleet, fault.subject).items():
                self.assertTrue(well, f"a false alarm of {name}: {said}")
        fault.make(fleet)
        for name in reporters.NAMES:
            if name not in fault.blind:
                well, said = reporters.await_unwell(fleet.reporter(name), fleet, fault.subject, SAYS_S)
                self.assertFalse(well, f"a green lie of {name}: {said}")
        named, said = reporters.await_named(fleet, fault.code, SAYS_S)
        self.assertTrue(named, f"health has no {fault.code}: {said}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    options, rest = parser.parse_known_args()
    if shutil.which("prometheus") is None:
        sys.exit(skip.lacks("no prometheus here"))
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    unittest.main(argv=[sys.argv[0], *rest])
