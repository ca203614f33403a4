#!/usr/bin/python3
"""Goal: a rolling restart of every holder fails no call and changes no bit, if each chunk has two holders.

Method: real processes. Two callers over gRPC and two over C query the same corpus without a pause. Meanwhile each
holder in turn is ended with SIGTERM, killed with SIGKILL, or stopped with SIGSTOP and resumed. The next one follows as
soon as the last one serves again. One is stopped for longer than a call's timeout. A restarted holder keeps its address
and its store. No times are asserted: the bench's set "field" has bars for them (tests/bench/field/rolling_restart.py).

    python3 tests/e2e/rolling_restart_e2e.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \\
        --attend-caller build/release/bin/attend_caller --c-caller build/release/bin/c_caller [--rounds N] [--calls N]
"""

import argparse
import json
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows
from directory_kill_e2e import run_ctl

HOLDERS, CALLERS_EACH = 3, 2
KINDS = ("TERM", "KILL", "STOP")
LONG_STOP = "long STOP"
# How long a holder is stopped, and how long callers run undisturbed between two events.
STOP_S, REST_S = 0.5, 0.05
TIMEOUT_S = 4.0


class Caller:
    """A process that makes calls until its stdin ends."""

    def __init__(self, *command):
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def await_answer(self):
        if self.process.stdout.readline() != "answered\n":
            raise RuntimeError("no answer at all")

    def end(self):
        out, _ = self.process.communicate(timeout=60)  # ends its stdin
        return json.loads(out)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class RollingFleet:
    """A directory, holders that keep their addresses over restarts, and a requester."""

    def __init__(self, folder, holders=HOLDERS, options=()):
        self.options = options  # of each holder
        self.fleet = Fleet.__new__(Fleet)
        self.fleet.folder, self.fleet.processes, self.fleet.durable = folder, [], True
        self.held, self.holders = [], {}
        try:
            self.fleet.directory = self.fleet.start("directory", "--role=directory")
            for i in range(holders):
                # Bound but not listening: reserves the port between two runs of the holder.
                held = socket.socket()
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", 0))
                self.held.append(held)
                self.start(i)
            self.fleet.requester = self.fleet.start("requester", "--role=requester",
                                                    f"--directory={self.fleet.directory}")
        except BaseException:
            self.stop()
            raise

    def start(self, index):
        address = f"127.0.0.1:{self.held[index].getsockname()[1]}"
        self.fleet.start(f"h{index}", "--role=holder", f"--directory={self.fleet.directory}", "--store-capacity=64MiB",
                         f"--store-path={self.fleet.store(index)}", *self.options, listen=address)
        self.holders[index] = self.fleet.processes[-1]

    def end(self, index, sign):
        process = self.holders.pop(index)
        process.send_signal(sign)
        process.wait(60)
        self.fleet.processes.remove(process)

    def play(self, kind, index, callers, stop_s=STOP_S):
        if kind == "STOP":
            self.holders[index].send_signal(signal.SIGSTOP)
            let_call(callers, stop_s)
            self.holders[index].send_signal(signal.SIGCONT)
        else:
            self.end(index, signal.SIGTERM if kind == "TERM" else signal.SIGKILL)
            self.start(index)

    def stop(self):
        self.fleet.stop()
        for held in self.held:
            held.close()


def let_call(callers, seconds):
    """Lets callers run for `seconds`. One that ends by itself is an error."""
    outputs = [caller.process.stdout for caller in callers]  # which end with the caller
    if select.select(outputs, [], [], seconds)[0]:
        raise RuntimeError("a caller ended by itself")


def count_calls(callers_said):
    counts = {name: sum(said[name] for said in callers_said) for name in ("queries", "failed", "changed")}
    errors = [said["first_error"] for said in callers_said if said["failed"]]
    return counts, errors


def longest(callers_said, events):
    """Seconds of the longest call during each kind of event, and during none: {kind: seconds}. A call during a stop
    counts for the stop alone. Any other call counts for each event during which, or less than a second after which,
    it was in progress."""
    stops = (KINDS[-1], LONG_STOP)
    found = dict.fromkeys((*KINDS, LONG_STOP, "none"), 0.0)
    for said in callers_said:
        for begin, took in said["slow"]:
            beside = {kind for kind, since, until in events if begin < until and begin + took > since and kind in stops}
            after = {kind for kind, since, until in events if begin < until + 1 and begin + took > since}
            for kind in beside or after - set(stops) or {"none"}:
                found[kind] = max(found[kind], took)
    return found


def load(fleet, folder):
    """A corpus with two copies of each chunk."""
    Rows(1, 32, 0).write(folder / "base.safetensors")
    loaded = run_ctl(fleet.fleet, "corpus", "load", "base", folder / "base.safetensors", "--chunk-tokens", 4,
                     "--replicas", 2)
    if loaded.returncode != 0:
        raise RuntimeError(loaded.stderr)


def start_callers(fleet, callers, each=CALLERS_EACH):
    """Appends `each` callers over gRPC and as many over C. They have answers on return."""
    for _ in range(each):
        timeout_ms = round(1000 * TIMEOUT_S)
        callers.append(Caller(PROGRAMS.attend_caller, fleet.fleet.requester, "base", D_QK, timeout_ms))
        callers.append(Caller(PROGRAMS.c_caller, fleet.fleet.directory, "base", timeout_ms))
    for caller in callers:
        caller.await_answer()


def play(folder, rounds, calls=0, calm_s=0.0, holders=HOLDERS):
    """Plays each kind with each holder, for at least `rounds` rounds and `calls` / 1000 seconds. Does not count calls.
    Returns (the report of each caller, events as (kind, begin, end), seconds)."""
    fleet = RollingFleet(folder, holders)
    callers, events = [], []
    try:
        load(fleet, folder)
        start_callers(fleet, callers)
        begin = time.monotonic()
        let_call(callers, calm_s)
        least = begin + calm_s + calls / 1000  # a machine that makes fewer than 1000 calls a second makes fewer in all
        played = 0
        while played < rounds or time.monotonic() < least:
            for kind in KINDS:
                for index in range(holders):
                    since = time.monotonic()
                    fleet.play(kind, index, callers)
                    events.append((kind, since, time.monotonic()))
                    let_call(callers, REST_S)
            played += 1
        since = time.monotonic()
        fleet.play("STOP", 0, callers, TIMEOUT_S + STOP_S)
        events.append((LONG_STOP, since, time.monotonic()))
        said = [caller.end() for caller in callers]
        return said, events, time.monotonic() - begin
    finally:
        for caller in callers:
            caller.kill()
        fleet.stop()


class RollingRestartTest(unittest.TestCase):
    rounds, calls = 1, 0

    def test_no_call_fails(self):
        with tempfile.TemporaryDirectory(prefix="ckv-rolling-restart-") as name:
            said, events, seconds = play(pathlib.Path(name), self.rounds, self.calls)
        counts, errors = count_calls(said)
        print(f"{counts} in {seconds:.1f} s; longest {longest(said, events)}; "
              f"ms at 0.5, 0.99, 0.999, 1: {[caller['ms'] for caller in said]}", file=sys.stderr)
        self.assertEqual(counts["failed"], 0, errors)
        self.assertEqual(counts["changed"], 0)
        self.assertGreater(counts["queries"], 100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--attend-caller", required=True)
    parser.add_argument("--c-caller", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--calls", type=int, default=0)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    PROGRAMS.attend_caller, PROGRAMS.c_caller = options.attend_caller, options.c_caller
    RollingRestartTest.rounds, RollingRestartTest.calls = options.rounds, options.calls
    unittest.main(argv=[sys.argv[0], *rest])
