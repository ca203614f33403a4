#!/usr/bin/python3
"""Goal: setting the wall clock changes nothing: no lease is lost, no call fails, and every period is kept.

Method: a directory, two holders, a requester and an engine over gRPC, each with a wall clock of its own
(tests/support/clock_step.c). While the engine calls without a pause, all clocks are set back by an hour, then ahead by
one, then back by 40 s. A lease lasts 2 s, so a wait that is too long loses one. clock_step.c also counts waits for a
point of the wall clock; there must be none.
The long form, tests/bench/field/clock_steps.py, also sets the clock of one program at a time.

    python3 tests/e2e/clock_steps_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl \\
        --attend-caller build/dev/bin/attend_caller --clock-step build/dev/tests/e2e/libclock_step.so
"""

import argparse
import json
import mmap
import os
import pathlib
import re
import subprocess
import struct
import sys
import tempfile
import time
import unittest
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows

HOUR_S = 3600
STEPS_S = (-HOUR_S, HOUR_S, -40)
LEASE_S = 2
# Long enough for a lease to expire if it is not renewed.
WATCH_S = 1.3 * LEASE_S
# A lease is renewed each third of its duration. On a busy machine, two of three renewals may be late.
RENEWALS_MIN = 1
MEMBERS = 3  # two holders and a requester


class WallClock:
    """The wall clock of one program."""

    def __init__(self, path):
        path.write_bytes(bytes(16))
        self.path = path
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 16)

    def step(self, seconds):
        (ahead_ns,) = struct.unpack_from("<q", self.map, 0)
        struct.pack_into("<q", self.map, 0, ahead_ns + int(seconds * 1e9))

    def wall_waits(self):
        return struct.unpack_from("<q", self.map, 8)[0]


class SteppedFleet(Fleet):
    """Each program has a wall clock of its own, and serves metrics."""

    def __init__(self, folder, library):
        self.clocks, self.metrics = {}, {}
        self.environment = {"LD_PRELOAD": str(library)}
        super().__init__(folder, 2)

    def start(self, name, *arguments, **options):
        self.clocks[name] = WallClock(self.folder / f"{name}.clock")
        saved = dict(os.environ)
        os.environ.update(self.environment, CKV_CLOCK_FILE=str(self.clocks[name].path))
        try:
            address = super().start(name, f"--lease-ttl={LEASE_S}s", "--metrics-address=127.0.0.1:0", *arguments, **options)
        finally:
            os.environ.clear()
            os.environ.update(saved)
        log = (self.folder / f"{name}.log").read_text()
        self.metrics[name] = re.search(r"metrics at (http://\S+/metrics)", log).group(1)
        return address

    def leases(self):
        """{program: {metric: value}} of the metrics of leases."""
        found = {}
        for name, address in self.metrics.items():
            with urllib.request.urlopen(address, timeout=30) as page:
                lines = page.read().decode().split("\n")
            found[name] = {key: float(value) for key, _, value in
                           (line.rpartition(" ") for line in lines if line.startswith("ckv_lease_"))}
        return found


def count(leases, metric):
    return sum(value for lines in leases.values() for key, value in lines.items() if key.startswith(metric))


class Engine:
    """Calls over gRPC without a pause until `end`."""

    def __init__(self, fleet, corpus):
        self.clock = WallClock(fleet.folder / "engine.clock")
        environment = dict(os.environ, **fleet.environment, CKV_CLOCK_FILE=str(self.clock.path))
        self.process = subprocess.Popen([PROGRAMS.attend_caller, fleet.requester, corpus, str(D_QK)],
                                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "answered\n":
            raise RuntimeError("the first call failed")

    def end(self):
        said = json.loads(self.process.communicate(timeout=60)[0])
        return said


def load(fleet, folder):
    rows = folder / "rows.safetensors"
    Rows(1, 64, 0).write(rows)
    environment = dict(os.environ, CKV_REQUESTER=fleet.requester, CKV_DIRECTORY=fleet.directory)
    subprocess.run([PROGRAMS.ckvctl, "corpus", "load", "text", rows, "--chunk-tokens", "16"], env=environment, check=True,
                   stdout=subprocess.DEVNULL, timeout=120)


def play(folder, library, one_by_one=False):
    """Sets the clocks of a fleet under load; returns {figure: value}."""
    fleet = SteppedFleet(folder, library)
    try:
        load(fleet, folder)
        engine = Engine(fleet, "text")
        clocks = {**fleet.clocks, "engine": engine.clock}
        rounds = [[name] for name in clocks] if one_by_one else [list(clocks)]
        before = fleet.leases()
        unrenewed, steps, least = 0, 0, None
        for names in rounds:
            for seconds in STEPS_S:
                at = fleet.leases()
                for name in names:
                    clocks[name].step(seconds)
                steps += 1
                begin = time.monotonic()
                while time.monotonic() - begin < WATCH_S:
                    try:
                        engine.process.wait(max(0.01, WATCH_S - (time.monotonic() - begin)))
                        raise RuntimeError("the engine ended")
                    except subprocess.TimeoutExpired:
                        pass
                now = fleet.leases()
                for name in now:
                    if not any(key.startswith("ckv_lease_renewals_total") for key in now[name]):
                        continue
                    renewed = count({name: now[name]}, "ckv_lease_renewals_total") - \
                        count({name: at[name]}, "ckv_lease_renewals_total")
                    unrenewed += renewed < RENEWALS_MIN
                    least = renewed if least is None else min(least, renewed)
        after = fleet.leases()
        said = engine.end()
        # Missing metrics would hide lost leases and missed renewals.
        if count(after, "ckv_lease_registrations_total") < MEMBERS or least is None:
            raise RuntimeError(f"not all members tell of their leases: {after}")
        return {"steps": steps, "calls": said["queries"], "failed": said["failed"], "changed": said["changed"],
                "first_error": said["first_error"], "unrenewed": unrenewed, "least_renewals": least,
                "lost": count(after, "ckv_lease_registrations_total") - count(before, "ckv_lease_registrations_total"),
                "not_held": sum(value != 1 for lines in after.values() for key, value in lines.items()
                                if key.startswith("ckv_lease_held")),
                "wall_waits": sum(clock.wall_waits() for clock in clocks.values())}
    finally:
        fleet.stop()


class ClockSteps(unittest.TestCase):
    def test_a_set_clock_changes_nothing(self):
        with tempfile.TemporaryDirectory(prefix="ckv-clock-steps-") as name:
            said = play(pathlib.Path(name), PROGRAMS.clock_step)
        print(said)
        self.assertEqual(said["steps"], len(STEPS_S))
        self.assertGreater(said["calls"], 0)
        for what in ("failed", "changed", "lost", "not_held", "unrenewed", "wall_waits"):
            self.assertEqual(said[what], 0, f"{what}: {said}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--ckvd", "--ckvctl", "--attend-caller", "--clock-step"):
        parser.add_argument(option, required=True, type=pathlib.Path)
    known, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = known.ckvd.resolve(), known.ckvctl.resolve()
    PROGRAMS.attend_caller, PROGRAMS.clock_step = known.attend_caller.resolve(), known.clock_step.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
