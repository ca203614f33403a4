#!/usr/bin/python3
"""Goal: of three directories on etcd any one may be killed, also the one that leads, and any one of etcd's members.
No call fails, no acknowledged change is lost, and no holder stops.

Method: real processes. Three members of etcd, three directories, three holders, a requester. Meanwhile ckvctl loads,
replaces, partitions and drops corpora, and engines query one without a pause. Then a majority of etcd is killed: calls
are refused with the reason once half a lease is over, and are right again after its return. The seed is printed. Uses
none of ckv's code, only the programs.

    python3 tests/e2e/directories_e2e.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \\
        --attend-caller build/release/bin/attend_caller [--rounds N] [--seed N]
"""

import argparse
import json
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip
from ctl_fleet import PROGRAMS, Fleet, Rows
from directory_kill_e2e import Reader, Tally, Worker, run_ctl
from etcd import EtcdCluster, is_installed

DIRECTORIES, HOLDERS, WORKERS, READERS = 3, 3, 2, 2
ROUNDS = 2
AWAIT_S = 60
# How long a member of etcd is away: the length of the fault, not a wait for something.
AWAY_S = 1
# The lines of a directory that begins to lead, and that ends.
LEADS, LED = "this one leads (etcd", "this one leads no more"


def poll(holds, seconds=AWAIT_S):
    """Waits until `holds` returns something true, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        held = holds()
        if held:
            return held
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


class SharedFleet:
    """Directories that keep their addresses over restarts, on an etcd of their own, and the rest of a fleet."""

    def __init__(self, folder, holders=HOLDERS):
        self.folder, self.held, self.directories = folder, [], {}
        self.etcd = EtcdCluster(folder)
        self.fleet = Fleet.__new__(Fleet)
        self.fleet.folder, self.fleet.processes, self.fleet.durable = folder, [], False
        try:
            for _ in range(DIRECTORIES):
                held = socket.socket()
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", 0))
                self.held.append(held)
            self.fleet.directory = ",".join(self.address(i) for i in range(DIRECTORIES))
            for i in range(DIRECTORIES):
                self.start(i)
            for i in range(holders):
                self.fleet.start(f"h{i}", "--role=holder", f"--directory={self.fleet.directory}",
                                 "--store-capacity=64MiB")
            self.fleet.requester = self.fleet.start("requester", "--role=requester",
                                                    f"--directory={self.fleet.directory}")
        except BaseException:
            self.stop()
            raise

    def address(self, index):
        return f"127.0.0.1:{self.held[index].getsockname()[1]}"

    def start(self, index):
        self.fleet.start(f"directory-{index}", "--role=directory", f"--directory-store={self.etcd.store}",
                         listen=self.address(index))
        self.directories[index] = self.fleet.processes[-1]

    def kill(self, index, sign=signal.SIGKILL):
        process = self.directories.pop(index)
        process.send_signal(sign)
        process.wait(60)
        self.fleet.processes.remove(process)

    def leader(self):
        """The index of the directory that leads; None if none does."""
        for index in self.directories:
            log = self.log(f"directory-{index}")
            if log.rfind(LEADS) > log.rfind(LED):
                return index
        return None

    def await_leader(self):
        if not poll(lambda: self.leader() is not None):
            raise RuntimeError("no directory leads")
        return self.leader()

    def settle(self):
        """Waits until each holder has a lease of the directory that leads: one thing fails at a time."""
        leads_since = self.last(f"directory-{self.await_leader()}", LEADS)
        for name in (f"h{i}" for i in range(HOLDERS)):
            if not poll(lambda: self.last(name, "registered in epoch") > leads_since):
                raise RuntimeError(self.log(name))

    def last(self, name, text):
        """The time of the last line of a log that has the text, as the log writes it; "" without one."""
        lines = [line for line in self.log(name).splitlines() if text in line]
        return lines[-1].split()[0] if lines else ""

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def stop(self):
        self.fleet.stop()
        for held in self.held:
            held.close()
        self.etcd.stop()


def disturb(fleet, rounds, rng):
    """Each round: kills the leading directory, a following one, and a member of etcd; stops another member, and then
    replaces it. Returns the seconds from each kill of a leader until another led."""
    took = []
    for _ in range(rounds):
        leader = fleet.await_leader()
        fleet.kill(leader)
        since = time.monotonic()
        fleet.await_leader()
        took.append(time.monotonic() - since)
        fleet.start(leader)
        fleet.settle()
        follower = rng.choice([i for i in fleet.directories if i != fleet.leader()])
        fleet.kill(follower, signal.SIGTERM)
        fleet.start(follower)
        fleet.kill(fleet.await_leader(), signal.SIGTERM)  # it hands the lead over
        fleet.start(next(i for i in range(DIRECTORIES) if i not in fleet.directories))
        fleet.settle()
        member = fleet.etcd.leader() or 0
        fleet.etcd.kill(member)
        time.sleep(AWAY_S)
        fleet.etcd.start(member)
        fleet.etcd.await_leader()
        fleet.settle()
        other = (member + 1) % 3
        fleet.etcd.pause(other)
        time.sleep(AWAY_S)
        fleet.etcd.resume(other)
        fleet.settle()
        fleet.etcd.replace(other)
        fleet.settle()
    return took


class DirectoriesTest(unittest.TestCase):
    rounds, seed = ROUNDS, None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckv-directories-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.fleet = SharedFleet(self.folder)
        self.addCleanup(self.fleet.stop)
        base = self.folder / "base.safetensors"
        Rows(1, 32, 0).write(base)
        loaded = run_ctl(self.fleet.fleet, "corpus", "load", "base", base, "--chunk-tokens", 4, "--replicas", 2)
        self.assertEqual(loaded.returncode, 0, loaded.stderr)

    def test_no_call_fails_when_one_is_lost(self):
        seed = self.seed if self.seed is not None else random.randrange(1 << 32)
        print(f"seed {seed}", file=sys.stderr, flush=True)
        tally, done, readers = Tally(), threading.Event(), []
        fleet = self.fleet.fleet
        workers = [Worker(i, fleet, self.folder, seed, tally, done) for i in range(WORKERS)]
        for worker in workers:
            worker.prepare()
        try:
            readers += [Reader(fleet) for _ in range(READERS)]
            for worker in workers:
                worker.start()
            took = disturb(self.fleet, self.rounds, random.Random(seed))
        finally:
            done.set()
            for worker in workers:
                if worker.is_alive():
                    worker.join()
            for reader in readers:
                reader.end(tally)
        for worker in workers:
            for name in worker.states:
                worker.check(name)
        print(tally.counts, "seconds until another led:", [round(one, 2) for one in took], file=sys.stderr)
        said = "\n".join(tally.said[:20])
        for count in ("lost", "half_seen", "other_errors", "refused", "failed_queries", "changed_answers"):
            self.assertEqual(tally.counts[count], 0, said)
        self.assertGreater(tally.counts["acknowledged"], self.rounds)
        for i in range(HOLDERS):
            log = self.fleet.log(f"h{i}")
            self.assertEqual(log.count("registered in epoch"), log.count(self.epoch_of(log)), log)
            self.assertNotIn("refuses every request", log)

    @staticmethod
    def epoch_of(log):
        """The text of a holder's first registration."""
        begin = log.index("registered in epoch")
        return log[begin:log.index("\n", begin)]

    def test_a_majority_of_etcd_is_lost(self):
        fleet = self.fleet
        self.fleet.etcd.kill(0)
        self.fleet.etcd.kill(1)
        refuses = poll(lambda: all("refuses every request" in fleet.log(f"h{i}") for i in range(HOLDERS)))
        self.assertTrue(refuses, fleet.log("h0"))
        unhealthy = run_ctl(fleet.fleet, "health", "-o", "json")
        self.assertNotEqual(unhealthy.returncode, 0)
        self.assertIn("directory-no-leader", unhealthy.stdout)
        # Reads go on.
        listed = run_ctl(fleet.fleet, "corpus", "list", "-o", "json")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertEqual([corpus["name"] for corpus in json.loads(listed.stdout)["corpora"]], ["base"])
        fleet.etcd.start(0)
        fleet.etcd.start(1)
        back = poll(lambda: run_ctl(fleet.fleet, "health").returncode == 0)
        self.assertTrue(back, run_ctl(fleet.fleet, "health").stdout)
        verified = run_ctl(fleet.fleet, "corpus", "verify", "base")
        self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_a_directory_moves_to_a_folder_and_back(self):
        fleet, file = self.fleet.fleet, self.folder / "fleet.ckvdir"
        before = json.loads(run_ctl(fleet, "corpus", "show", "base", "-o", "json").stdout)
        exported = run_ctl(fleet, "directory", "export", file)
        self.assertEqual(exported.returncode, 0, exported.stderr)
        alone = Fleet.__new__(Fleet)
        alone.folder, alone.processes, alone.durable, alone.requester = self.folder, [], False, fleet.requester
        self.addCleanup(alone.stop)
        alone.directory = alone.start("alone", "--role=directory", f"--directory-path={self.folder}/alone-state")
        imported = run_ctl(alone, "directory", "import", file)
        self.assertEqual(imported.returncode, 0, imported.stderr)
        moved = json.loads(run_ctl(alone, "corpus", "show", "base", "-o", "json").stdout)
        self.assertEqual([(chunk["id"], chunk["holders"]) for chunk in moved["chunks"]],
                         [(chunk["id"], chunk["holders"]) for chunk in before["chunks"]])
        self.assertEqual(moved["version"], before["version"])
        exported = run_ctl(alone, "directory", "export", file)
        self.assertEqual(exported.returncode, 0, exported.stderr)
        again = run_ctl(fleet, "directory", "import", file)  # nothing is replaced, and nothing is missing
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("0 corpora, 0 keys, 0 tombstones; 1 were there", again.stdout)
        file.write_bytes(file.read_bytes()[:-1])
        self.assertNotEqual(run_ctl(fleet, "directory", "import", file).returncode, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--attend-caller", required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int)
    args, rest = parser.parse_known_args()
    if not is_installed():
        sys.exit(skip.lacks("there is no etcd"))
    PROGRAMS.ckvd, PROGRAMS.ckvctl, PROGRAMS.attend_caller = args.ckvd, args.ckvctl, args.attend_caller
    DirectoriesTest.rounds, DirectoriesTest.seed = args.rounds, args.seed
    unittest.main(argv=[sys.argv[0], *rest])
