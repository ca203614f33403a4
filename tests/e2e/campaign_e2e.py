#!/usr/bin/python3
"""Goal: whatever fails in a fleet, no answer is wrong, no acknowledged change is lost, no call hangs, no program crashes,
and soon after the last fault everything is right again.

Method: real programs on eight hosts, which are namespaces of this one: three members of etcd, three directories, three
holders, a requester. Engines attend under each policy, over gRPC and C, and ckvctl changes corpora. Meanwhile programs
are killed, ended and stopped, one by one and in storms, packets are lost, in one direction or both, connections stay
half-open, and disks are full, several faults at a time (campaign.py). Then every corpus is checked. The seed is printed.

    sudo python3 tests/e2e/campaign_e2e.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \\
        --attend-caller build/release/bin/attend_caller --c-caller build/release/bin/c_caller [--seconds N] [--seed N]
"""

import argparse
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip
from campaign import Campaign
from ctl_fleet import D_QK, PROGRAMS, Rows
from directory_kill_e2e import UNKNOWN, Tally, Worker, run_ctl
from etcd import is_installed
from lan import why_not
from lan_fleet import LanFleet
from rolling_restart_e2e import Caller

SECONDS = 30
WORKERS = 2
POLICIES = ("route", "cache", "auto")
TIMEOUT_S = 4.0
# A call's deadline, and half as much for a machine whose processors have other work.
CALL_S_MAX = 1.5 * TIMEOUT_S
# From the end of the last fault: a holder's lease on etcd is 9 s, and repairs may follow.
RIGHT_AGAIN_S = 40
CALM_S = 1.0
TOKENS = 64


class LateWorker(Worker):
    """A worker whose refused changes may still be made, once a packet of them passes."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.late = {name: [] for name in self.states}  # (the state before, what it would have become)

    def check(self, name):
        seen, was = self.look(name), self.states[name]
        if UNKNOWN not in (seen, was) and seen != was and not any(is_wanted(before, seen) for before, is_wanted in self.late[name]):
            self.tally.add("lost", f"{name}: {was} was acknowledged, {seen} is there")
        self.states[name] = seen

    def change(self, name, arguments, is_wanted):
        before = self.states[name]
        ran = run_ctl(self.fleet, *arguments)
        if ran.returncode == 0:
            self.tally.add("acknowledged")
            seen = self.look(name)
            if seen is not UNKNOWN and not is_wanted(before, seen):
                self.tally.add("lost", f"{arguments}: was {before}, is {seen}")
            self.states[name] = seen
            return
        self.tally.add("refused")
        self.late[name].append((before, is_wanted))
        self.check(name)


class Engines:
    """Callers under each policy over C, and one over gRPC."""

    def __init__(self, fleet):
        self.callers = []
        timeout_ms = round(1000 * TIMEOUT_S)
        self._start(fleet, PROGRAMS.attend_caller, fleet.requester, "base", D_QK, timeout_ms)
        for policy in POLICIES:
            self._start(fleet, PROGRAMS.c_caller, fleet.directory, "base", timeout_ms, policy)

    def _start(self, fleet, *command):
        self.callers.append(Caller(*fleet.prefix, *command))

    def await_answers(self):
        for caller in self.callers:
            caller.await_answer()

    def end(self):
        return [caller.end() for caller in self.callers]

    def kill(self):
        for caller in self.callers:
            caller.kill()


def play(folder, seconds, seed):
    """Returns (counts of faults, the tally of changes, the callers' reports, those after the last fault, seconds until all
    was right again, the crashes)."""
    rng, tally, done = random.Random(seed), Tally(), threading.Event()
    fleet, engines, workers = LanFleet(folder), [], []
    try:
        load(fleet, folder)
        workers = [LateWorker(i, fleet, folder, seed, tally, done) for i in range(WORKERS)]
        for worker in workers:
            worker.prepare()
        engines.append(Engines(fleet))
        engines[0].await_answers()
        for worker in workers:
            worker.start()
        campaign = Campaign(fleet, rng)
        campaign.play(seconds)
        took = await_right(fleet)
        done.set()
        for worker in workers:
            worker.join()
            for name in worker.states:
                worker.check(name)
        said = engines[0].end()
        engines.append(Engines(fleet))
        engines[1].await_answers()
        time.sleep(CALM_S)  # how long they call
        after = engines[1].end()
        fleet.restart_ended()
        crashes = [crash for program in fleet.programs.values() for crash in program.crashes]
        return campaign.counts, tally, said, after, took, crashes
    finally:
        done.set()
        for worker in workers:
            if worker.is_alive():
                worker.join()
        for one in engines:
            one.kill()
        fleet.stop()


def load(fleet, folder):
    Rows(1, TOKENS, 0).write(folder / "base.safetensors")
    loaded = run_ctl(fleet, "corpus", "load", "base", folder / "base.safetensors", "--chunk-tokens", 4, "--replicas", 2)
    if loaded.returncode != 0:
        raise RuntimeError(loaded.stderr)


def await_right(fleet):
    """Seconds until the fleet is healthy and each chunk is whole on each of its holders."""
    begin = time.monotonic()
    while True:
        fleet.restart_ended()
        health = run_ctl(fleet, "health")
        verified = run_ctl(fleet, "corpus", "verify", "base")
        took = time.monotonic() - begin
        if health.returncode == verified.returncode == 0:
            return took
        if took > RIGHT_AGAIN_S:
            raise AssertionError(f"after {took:.1f} s: {health.stdout}{health.stderr}{verified.stdout}{verified.stderr}")


class CampaignTest(unittest.TestCase):
    seconds, seed = SECONDS, None

    def test_no_answer_is_wrong_and_all_is_right_again(self):
        seed = self.seed if self.seed is not None else random.randrange(1 << 32)
        print(f"seed {seed}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="ckv-campaign-") as name:
            faults, tally, said, after, took, crashes = play(pathlib.Path(name), self.seconds, seed)
        longest = max(one["ms"][3] for one in said) / 1000
        print(f"{sum(faults.values())} faults {dict(faults)}; {tally.counts}; right again after {took:.1f} s; longest call "
              f"{longest:.2f} s; " + "; ".join(str({k: one[k] for k in ("queries", "failed", "changed", "first_error")})
                                              for one in said), file=sys.stderr)
        self.assertEqual(crashes, [])
        self.assertEqual([one["changed"] for one in said + after], [0] * len(said + after))
        for count in ("lost", "half_seen"):
            self.assertEqual(tally.counts[count], 0, "\n".join(tally.said[:20]))
        self.assertEqual([one["failed"] for one in after], [0] * len(after), after)
        self.assertLess(longest, CALL_S_MAX)
        self.assertGreater(sum(faults.values()), self.seconds / 4)
        self.assertGreater(tally.counts["acknowledged"], 0)
        self.assertGreater(min(one["queries"] - one["failed"] for one in said), 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ckvd", type=pathlib.Path, required=True)
    parser.add_argument("--ckvctl", type=pathlib.Path, required=True)
    parser.add_argument("--attend-caller", type=pathlib.Path, required=True)
    parser.add_argument("--c-caller", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int)
    options, rest = parser.parse_known_args()
    if not is_installed():
        sys.exit(skip.lacks("there is no etcd"))
    if shutil.which("nft") is None:
        sys.exit(skip.lacks("there is no nft"))
    if (reason := why_not()) is not None:
        sys.exit(skip.cannot(*reason))
    for program in ("ckvd", "ckvctl", "attend_caller", "c_caller"):
        setattr(PROGRAMS, program, getattr(options, program).resolve())
    CampaignTest.seconds, CampaignTest.seed = options.seconds, options.seed
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
