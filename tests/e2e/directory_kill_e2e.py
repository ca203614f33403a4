#!/usr/bin/python3
"""Goal: a directory that is killed again and again loses no change that was acknowledged, shows none by half, and costs
its callers UNAVAILABLE at most, and that only for changes: queries go on.

Method: kills a real directory with a folder by SIGKILL at random instants, also during its start, and starts it again
at its address. Meanwhile ckvctl loads corpora, replaces them by longer and shorter ones, partitions and drops them, and
engines query a corpus through the requester without a pause. Each worker records what its corpora must be: the last
acknowledged state or, after an UNAVAILABLE, either that or the requested one. It checks a corpus before each change, so
each one is checked after a kill sooner or later. The seed is printed. Uses none of ckv's code, only the two programs.

    python3 tests/e2e/directory_kill_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl \\
        --attend-caller build/dev/bin/attend_caller [--kills N] [--seed N]
"""

import argparse
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows

KILLS = 20
WORKERS, CORPORA, LENGTHS, CHUNK_TOKENS = 3, 2, 6, 4
READERS = 2
# The longest time from serving to the kill. Every fifth kill happens during the start, after at most START_S_MAX.
LIFE_S_MAX, START_S_MAX = 1.5, 0.05
UNAVAILABLE, NOT_FOUND = 4, 3
# How long a caller retries while the directory is unreachable.
PATIENCE_S = 30
UNKNOWN = object()  # the state of a corpus while the directory does not answer


class Directory:
    """A directory that keeps its address over restarts."""

    def __init__(self, folder):
        # Bound but not listening: reserves the port between two runs. ckvd can bind it too (SO_REUSEADDR).
        self.held = socket.socket()
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]
        self.folder, self.life, self.process = folder, 0, None

    def start(self):
        self.life += 1
        with (self.folder / f"directory.{self.life}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [PROGRAMS.ckvd, "--role=directory", "--name=directory", f"--listen=127.0.0.1:{self.port}",
                 f"--directory-path={self.folder}/directory"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        return (self.folder / f"directory.{self.life}.log").read_text()

    def await_serving(self):
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError("the directory does not start:\n" + self.log())
            self.live(0.002)

    def live(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError("the directory ended by itself:\n" + self.log())

    def kill(self):
        self.process.kill()
        if self.process.wait() != -signal.SIGKILL:
            raise RuntimeError("the directory ended by itself:\n" + self.log())

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.held.close()


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {"kills": 0, "acknowledged": 0, "refused": 0, "lost": 0, "half_seen": 0, "other_errors": 0,
                       "queries": 0, "failed_queries": 0, "changed_answers": 0}
        self.said = []

    def add(self, count, what=None):
        with self.lock:
            self.counts[count] += 1
            if what is not None:
                self.said.append(f"{count}: {what}")


def run_ctl(fleet, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
    environment.update(CKV_REQUESTER=fleet.requester, CKV_DIRECTORY=fleet.directory)
    return subprocess.run([*fleet.prefix, PROGRAMS.ckvctl, *map(str, arguments)], env=environment, timeout=120,
                          capture_output=True, text=True, check=False)


class Worker(threading.Thread):
    """Changes its corpora and tracks their expected states. A state is (version, ids, holders of each), or None."""

    def __init__(self, number, fleet, folder, seed, tally, done):
        super().__init__()
        self.fleet, self.tally, self.done = fleet, tally, done
        self.random = random.Random(f"{seed} {number}")
        self.states = {f"w{number}-{i}": None for i in range(CORPORA)}
        self.files = []
        whole = Rows(100 + number, LENGTHS * CHUNK_TOKENS, 0)
        for length in range(1, LENGTHS + 1):
            part = Rows(0, 0, 0)
            part.token_ids = whole.token_ids[:length * CHUNK_TOKENS]
            part.layers = [layer[:length * CHUNK_TOKENS] for layer in whole.layers]
            self.files.append(folder / f"{number}-{length}.safetensors")
            part.write(self.files[-1])
        self.ids = []  # of the longest

    def look(self, name):
        """The state that the directory reports. Retries for PATIENCE_S; UNKNOWN if it does not answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            shown = run_ctl(self.fleet, "corpus", "show", name, "-o", "json")
            if shown.returncode == NOT_FOUND:
                return None
            if shown.returncode == 0:
                corpus = json.loads(shown.stdout)
                return (corpus["version"], tuple(chunk["id"] for chunk in corpus["chunks"]),
                        tuple(tuple(chunk["holders"]) for chunk in corpus["chunks"]))
            if shown.returncode != UNAVAILABLE or time.monotonic() > deadline:
                self.tally.add("other_errors", f"corpus show {name}: {shown.returncode} {shown.stderr}")
                return UNKNOWN

    def check(self, name):
        """Checks that the corpus is in its acknowledged state. This worker has no change pending."""
        seen = self.look(name)
        if UNKNOWN not in (seen, self.states[name]) and seen != self.states[name]:
            self.tally.add("lost", f"{name}: {self.states[name]} was acknowledged, {seen} is there")
        self.states[name] = seen

    def change(self, name, arguments, is_wanted):
        """Runs a change. Then the corpus must be unchanged or satisfy `is_wanted`; if acknowledged, `is_wanted`."""
        before = self.states[name]
        ran = run_ctl(self.fleet, *arguments)
        seen = self.look(name)
        self.states[name] = seen
        if ran.returncode == 0:
            self.tally.add("acknowledged")
            if seen is not UNKNOWN and not is_wanted(before, seen):
                self.tally.add("lost", f"{arguments}: was {before}, is {seen}")
            return
        self.tally.add("refused")
        if ran.returncode != UNAVAILABLE:
            self.tally.add("other_errors", f"{arguments}: {ran.returncode} {ran.stderr}")
        if seen not in (UNKNOWN, before) and not is_wanted(before, seen):
            self.tally.add("half_seen", f"{arguments}: was {before}, is {seen}")

    def load(self, name, length):
        def is_loaded(before, seen):
            return (seen is not None and seen[1] == self.ids[:length] and
                    (before is None or seen[0] > before[0] or seen == before))
        replace = ["--replace"] if self.states[name] is not None else []
        self.change(name, ["corpus", "load", name, self.files[length - 1], "--chunk-tokens", CHUNK_TOKENS, *replace],
                    is_loaded)

    def partition(self, name):
        without = f"h{self.random.randrange(3)}"

        def is_moved(before, seen):
            return (seen is not None and seen[1] == before[1] and all(without not in holders for holders in seen[2]) and
                    (seen[0] > before[0] or seen == before))
        self.change(name, ["corpus", "partition", name, "--weights", f"{without}=0"], is_moved)

    def prepare(self):
        """Learns the ids of its chunks, before anything is killed."""
        name = next(iter(self.states))
        loaded = run_ctl(self.fleet, "corpus", "load", name, self.files[-1], "--chunk-tokens", CHUNK_TOKENS)
        if loaded.returncode != 0:
            raise RuntimeError(loaded.stderr)
        self.states[name] = self.look(name)
        self.ids = self.states[name][1]

    def run(self):
        while not self.done.is_set():
            name = self.random.choice(list(self.states))
            self.check(name)
            if self.states[name] is UNKNOWN:
                continue
            act = self.random.random()
            if self.states[name] is None or act < 0.5:
                self.load(name, self.random.randrange(1, LENGTHS + 1))
            elif act < 0.8:
                self.partition(name)
            else:
                self.change(name, ["corpus", "drop", name], lambda before, seen: seen is None)


class Reader:
    """An engine that queries the requester in a loop. Each query must be answered, with the same bits."""

    def __init__(self, fleet):
        self.process = subprocess.Popen([*fleet.prefix, PROGRAMS.attend_caller, fleet.requester, "base", str(D_QK)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "answered\n":  # a requester continues with what it has cached
            raise RuntimeError("no answer at all")

    def end(self, tally):
        out, _ = self.process.communicate(timeout=60)  # ends its stdin
        said = json.loads(out)
        with tally.lock:
            tally.counts["queries"] += said["queries"]
            tally.counts["failed_queries"] += said["failed"]
            tally.counts["changed_answers"] += said["changed"]
            if said["failed"]:
                tally.said.append(f"failed_queries: {said['first_error']}")


def start_fleet(folder, directory):
    fleet = Fleet.__new__(Fleet)
    fleet.folder, fleet.processes, fleet.durable = folder, [], False
    fleet.directory = f"127.0.0.1:{directory.port}"
    for i in range(3):
        # A holder answers for half a lease after its last renewal. Queries must continue over consecutive kills, so
        # this half, 30 s, is longer than a slow machine needs for several runs of the directory.
        fleet.start(f"h{i}", "--role=holder", f"--directory={fleet.directory}", "--store-capacity=64MiB",
                    "--lease-ttl=60s")
    fleet.requester = fleet.start("requester", "--role=requester", f"--directory={fleet.directory}")
    return fleet


def kill_it(directory, kills, rng, tally):
    """Kills it at least `kills` times. On a slow machine, up to 3 times as often, until enough changes were
    acknowledged between kills to notice a lost one."""
    for kill in range(3 * kills):
        with tally.lock:
            if kill >= kills and tally.counts["acknowledged"] > kills // 2:
                break
        if kill % 5 == 4:
            directory.live(rng.random() * START_S_MAX)
        else:
            directory.await_serving()
            directory.live(rng.random() * LIFE_S_MAX)
        directory.kill()
        tally.add("kills")
        directory.start()
    directory.await_serving()


def play(folder, kills, seed):
    """Returns a Tally."""
    rng = random.Random(seed)
    tally, done = Tally(), threading.Event()
    directory = Directory(folder)
    directory.start()
    threads, readers, fleet = [], [], None
    try:
        directory.await_serving()
        fleet = start_fleet(folder, directory)
        base = folder / "base.safetensors"
        Rows(1, 32, 0).write(base)
        loaded = run_ctl(fleet, "corpus", "load", "base", base, "--chunk-tokens", 4)
        if loaded.returncode != 0:
            raise RuntimeError(loaded.stderr)
        workers = [Worker(i, fleet, folder, seed, tally, done) for i in range(WORKERS)]
        for worker in workers:
            worker.prepare()
        readers += [Reader(fleet) for _ in range(READERS)]
        for worker in workers:
            worker.start()
            threads.append(worker)
        kill_it(directory, kills, rng, tally)
        done.set()
        for thread in threads:
            thread.join()
        for reader in readers:
            reader.end(tally)
        directory.kill()  # and once more, when all is quiet
        directory.start()
        directory.await_serving()
        for worker in workers:
            for name in worker.states:
                worker.check(name)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        for reader in readers:
            if reader.process.poll() is None:
                reader.process.kill()
                reader.process.wait()
        if fleet is not None:
            fleet.stop()
        directory.stop()
    return tally


class DirectoryKillTest(unittest.TestCase):
    kills, seed = KILLS, None

    def test_survives_repeated_kills(self):
        seed = self.seed if self.seed is not None else random.randrange(1 << 32)
        print(f"seed {seed}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="ckv-directory-kill-") as name:
            tally = play(pathlib.Path(name), self.kills, seed)
        print(tally.counts, file=sys.stderr)
        said = "\n".join(tally.said[:20])
        for count in ("lost", "half_seen", "other_errors", "failed_queries", "changed_answers"):
            self.assertEqual(tally.counts[count], 0, said)
        self.assertGreaterEqual(tally.counts["kills"], self.kills)
        self.assertGreater(tally.counts["acknowledged"], self.kills // 2)
        self.assertGreater(tally.counts["queries"], 10 * self.kills)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--attend-caller", required=True)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl, PROGRAMS.attend_caller = options.ckvd, options.ckvctl, options.attend_caller
    DirectoryKillTest.kills, DirectoryKillTest.seed = options.kills, options.seed
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
