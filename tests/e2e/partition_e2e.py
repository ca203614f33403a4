#!/usr/bin/python3
"""Goal: a partition that is killed halfway continues from there when run again, while queries are answered.

Method: holders with folders on loopback. One of them is stopped, so a partition hangs once the
others have their chunks. ckvctl is killed there, the holder continues, and ckvctl is run again.
Uses none of ckv's code, only the two programs.

    python3 tests/e2e/partition_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows, write_safetensors

TIMEOUT_S = 60
CHUNKS = 40


class PartitionTest(unittest.TestCase):
    tenant = ""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-partition-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(self.folder, holders=0, keyed=bool(self.tenant))
        self.addCleanup(self.fleet.stop)
        self.start_holder(0)
        path = self.folder / "rows.safetensors"
        Rows(1, CHUNKS * 4, 0).write(path)
        self.ctl("corpus", "load", "docs", path, "--chunk-tokens", 4)
        self.start_holder(1)
        self.start_holder(2)
        rng = random.Random(3)
        self.queries = self.folder / "q.safetensors"
        write_safetensors(self.queries, {"q": ("F32", [2, D_QK], struct.pack(
            f"<{2 * D_QK}f", *(rng.gauss(0, 1) for _ in range(2 * D_QK))))})

    def start_holder(self, i):
        # A lease longer than the time that a holder is stopped.
        self.fleet.start(f"h{i}", "--role=holder", f"--directory={self.fleet.directory}",
                         "--store-capacity=64MiB", f"--store-path={self.folder}/store-{i}",
                         "--lease-ttl=60s")

    def files(self, i):
        chunks = (self.folder / f"store-{i}").glob("chunks/*/*/*")
        return sum(1 for path in chunks if path.is_file() and path.suffix != ".facts")

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        return {**env, "CKV_REQUESTER": self.fleet.requester}

    def command(self, *arguments):
        tenant = ["--tenant", self.tenant] if self.tenant else []
        return [PROGRAMS.ckvctl, *tenant, *map(str, arguments)]

    def run_ctl(self, *arguments):
        return subprocess.run(self.command(*arguments), env=self.environment(),
                              timeout=120, capture_output=True, text=True, check=False)

    def ctl(self, *arguments):
        result = self.run_ctl(*arguments, "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def counts(self):
        chunks = self.ctl("corpus", "show", "docs")["chunks"]
        return {f"h{i}": sum(f"h{i}" in c["holders"] for c in chunks) for i in range(3)}

    def test_continues_after_a_kill(self):
        self.assertEqual(self.counts(), {"h0": CHUNKS, "h1": 0, "h2": 0})
        move = ("corpus", "partition", "docs", "--weights", "h0=0")
        plan = self.ctl(*move, "--dry-run")
        self.assertEqual(plan["copy_count"], CHUNKS)
        to_h1 = next(h["chunks_in"] for h in plan["holders"] if h["id"] == "h1")
        self.assertTrue(0 < to_h1 < CHUNKS)

        stopped = self.fleet.processes[-1]  # h2
        stopped.send_signal(signal.SIGSTOP)
        with (self.folder / "ctl.log").open("wb") as log:
            run = subprocess.Popen(self.command(*move), env=self.environment(),
                                   stdout=log, stderr=log)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        deadline = time.monotonic() + TIMEOUT_S
        while self.files(1) < to_h1:
            self.assertLess(time.monotonic(), deadline, "h1 does not get its chunks")
            self.assertIsNone(run.poll(), (self.folder / "ctl.log").read_text())
        run.kill()
        run.wait()
        stopped.send_signal(signal.SIGCONT)
        self.assertEqual(self.counts(), {"h0": CHUNKS, "h1": 0, "h2": 0})
        self.assertIn("HOLDER", (self.folder / "ctl.log").read_text())

        # The chunks that were pushed are garbage by now, but young.
        found = self.ctl("gc")
        self.assertEqual((found["dropped_count"], found["placed_count"]), (0, CHUNKS))
        self.assertGreaterEqual(found["young_count"], to_h1)

        answers, done = [], threading.Event()

        def attend():
            while not done.is_set():
                answers.append(self.run_ctl("attend", "--corpus", "docs", "--layer", "1",
                                            "--queries", self.queries, "--out",
                                            self.folder / "partial.safetensors"))
        thread = threading.Thread(target=attend)
        thread.start()
        try:
            moved = self.ctl(*move)
        finally:
            done.set()
            thread.join()
        self.assertGreaterEqual(moved["chunks_reused"], to_h1)
        self.assertEqual(moved["chunks_reused"] + moved["chunks_sent"], CHUNKS)
        self.assertEqual(moved["chunks_dropped"], CHUNKS)
        self.assertTrue(answers)
        for answer in answers:
            self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual([self.files(i) for i in range(3)], [0, to_h1, CHUNKS - to_h1])
        self.assertEqual(self.ctl(*move)["copy_count"], 0)

        dropped = self.ctl("corpus", "drop", "docs")
        self.assertEqual((dropped["chunks_dropped"], dropped["warnings"]), (CHUNKS, []))


class TenantsPartitionTest(PartitionTest):
    """The same with ids made with a tenant's key. Holders check them against the pushed chunks."""

    tenant = "acme"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
