#!/usr/bin/python3
"""Tries each known fault against each reporter, on real processes, and then watches a healthy fleet for minutes.

    python3 tests/bench/field/health_matrix.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl [FAULT]...

A "green lie" is a report that all is well although the reporter can detect the fault. A "false alarm" is a report that
something is wrong with a healthy fleet. Needs root and nftables; runs in namespaces of its own.
tests/e2e/health_matrix_e2e.py is its short form, which needs neither.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "support")]
import broken_fleet  # noqa: E402
import reporters  # noqa: E402
import skip  # noqa: E402
from bar import NOT_HERE  # noqa: E402
from broken_fleet import Broken, ctl_fleet  # noqa: E402
from faults import FAULTS  # noqa: E402
from priority import usual_priority  # noqa: E402

SAYS_S = 15  # until a reporter must report it: leases of 1 s, a scrape and a rule of 1 s, 3 s for a silent member
SETTLE_S = 10  # for a fleet that has just started
HEALTHY_S = 600


class Tried(Broken):
    """A fleet with a corpus, a call that was answered, and a Prometheus."""

    def __init__(self, folder, replicas=1, **shape):
        super().__init__(folder, **shape)
        self.environment, self.loaded = {}, {"docs"}
        try:
            self._use(folder, replicas)
            self.alerts = reporters.Alerts(self)
        except BaseException:
            super().stop()
            raise

    def _use(self, folder, replicas):
        self.load("docs", 1, 70, "--replicas", replicas)
        query = [ctl_fleet.bf16(0.5)] * ctl_fleet.D_QK
        ctl_fleet.write_safetensors(folder / "q.safetensors",
                                    {"q": ("BF16", [1, ctl_fleet.D_QK], b"".join(v.to_bytes(2, "little") for v in query))})
        answered = self.attend()
        if answered.returncode != 0:
            raise RuntimeError(f"the first call: {answered.stderr}")

    def attend(self):
        return self.ctl("attend", "--corpus", "docs", "--layer", 0, "--queries", self.folder / "q.safetensors", "--out",
                        self.folder / "o.safetensors", "--timeout", "3s", check=False)

    def reporter(self, name):
        return self.alerts if name == "alerts" else reporters.SAYING[name]

    def stop(self):
        self.alerts.stop()
        super().stop()


def all_well(fleet, subject="h1"):
    return {name: fleet.reporter(name)(fleet, subject) for name in reporters.NAMES}


def settle(fleet, subject="h1"):
    """Waits until all reporters report that a newly started fleet is well. Until then "no holder" was true, and
    reporters check about once a second. Returns their reports, as all_well does."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        said = all_well(fleet, subject)
        if all(well for well, _ in said.values()) or time.monotonic() > deadline:
            return said
        fleet.live(0.2)


def try_fault(fault, seconds=SAYS_S):
    """([(reporter, its report)] of the green lies, whether health names the fault by its code, health's report)."""
    with tempfile.TemporaryDirectory(prefix="ckv-matrix-") as folder:
        fleet = Tried(pathlib.Path(folder), fault.replicas, **fault.shape)
        try:
            fault.make(fleet)
            lies = []
            for name in reporters.NAMES:
                if name in fault.blind:
                    continue
                well, said = reporters.await_unwell(fleet.reporter(name), fleet, fault.subject, seconds)
                if well:
                    lies.append((name, said))
            return lies, *reporters.await_named(fleet, fault.code, seconds)
        finally:
            fleet.stop()


def try_healthy(seconds):
    """([(reporter, its report)] of the false alarms, number of reports) of a healthy fleet, during calls and loads."""
    alarms, asked = [], 0
    with tempfile.TemporaryDirectory(prefix="ckv-matrix-") as folder:
        fleet = Tried(pathlib.Path(folder))
        try:
            settle(fleet)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for name, (well, said) in all_well(fleet).items():
                    asked += 1
                    if not well:
                        alarms.append((name, said))
                fleet.attend()
                fleet.load("more", 2, 200, "--replace")
                fleet.loaded.add("more")
            return alarms, asked
        finally:
            fleet.stop()


def inside(arguments):
    chosen = [one for one in FAULTS if not arguments.faults or any(part in one.name for part in arguments.faults)]
    lies = unnamed = cells = 0
    for fault in chosen:
        begin = time.monotonic()
        try:
            found, named, said = try_fault(fault)
        except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            found, named, said = [("the fault", f"could not be made: {error}")], False, ""
        cells += len(reporters.NAMES) - len(fault.blind)
        lies += len(found)
        unnamed += not named
        print(f"{fault.name}: {len(found)} green lies, health {'names' if named else 'does not name'} {fault.code}; "
              f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
        for reporter, text in found:
            print(f"    {reporter} says: {text.strip()[:300]}", file=sys.stderr)
        if not named:
            print(f"    health says: {said.strip()[:600]}", file=sys.stderr)
    alarms, asked = try_healthy(arguments.healthy) if arguments.healthy else ([], 0)
    for reporter, text in alarms[:10]:
        print(f"false alarm: {reporter} says: {text.strip()[:300]}", file=sys.stderr)
    print(json.dumps({"faults": len(chosen), "cells": cells, "lies": lies, "unnamed": unnamed, "alarms": len(alarms),
                      "asked": asked, "healthy_s": arguments.healthy}))
    return 1 if lies or unnamed or alarms else 0


@usual_priority()
def figures(build):
    """The figures for bars.py: the whole matrix, and ten minutes of a healthy fleet."""
    lacks = broken_fleet.lacks()
    if lacks:
        return {NOT_HERE: skip.REMEDY.join(lacks)}
    done = subprocess.run([sys.executable, __file__, "--ckvd", build / "bin" / "ckvd", "--ckvctl", build / "bin" / "ckvctl",
                           "--healthy", str(HEALTHY_S)], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"health_matrix.py ended with {done.returncode} and told nothing")
    return {"matrix": json.loads(done.stdout)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckvd", required=True, type=pathlib.Path)
    parser.add_argument("--ckvctl", required=True, type=pathlib.Path)
    parser.add_argument("--healthy", type=float, default=0, metavar="SECONDS", help="how long a fleet that is well is watched")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="parts of the names of those to try; without, all")
    arguments = parser.parse_args()
    lacks = broken_fleet.lacks()
    if lacks:
        return skip.cannot(*lacks)
    if not arguments.inside:
        return subprocess.run(["unshare", "--net", "--mount", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable,
                               __file__, "--inside", *sys.argv[1:]], check=False).returncode
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = str(arguments.ckvd.resolve()), str(arguments.ckvctl.resolve())
    return inside(arguments)


if __name__ == "__main__":
    sys.exit(main())
