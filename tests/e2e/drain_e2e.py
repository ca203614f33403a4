#!/usr/bin/python3
"""Goal: a holder is emptied before its machine goes, and a lost one is replaced, while every call is answered.

Method: a directory and three holders with folders, on loopback, and ckvctl. A thread attends a corpus over and
over meanwhile. Uses none of ckv's code, only the two programs.

    python3 tests/e2e/drain_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import pathlib
import signal
import struct
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows, write_safetensors

# Copies of some megabytes, on a machine that may be busy.
SETTLE_TIMEOUT_S = 60
DEADLINE_EXIT, NOT_FOUND_EXIT = 5, 3


class DrainTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-drain-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(self.folder, holders=3, durable=True, keyed=True, directory_options=["--repair-loss-after=2s"])
        self.addCleanup(self.fleet.stop)
        self.rows = self.folder / "rows.safetensors"
        Rows(1, 640, 0).write(self.rows)
        self.query = self.folder / "q.safetensors"
        write_safetensors(self.query, {"q": ("F32", [1, D_QK], struct.pack(f"<{D_QK}f", *[0.5] * D_QK))})
        self.ctl("corpus", "load", "docs", self.rows, "--chunk-tokens", 32, "--replicas", 2)

    def run_ctl(self, *arguments):
        return self.fleet.run_ctl(*arguments)

    def ctl(self, *arguments):
        result = self.run_ctl(*arguments, "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def lists(self, corpus="docs"):
        return [sorted(c["holders"]) for c in self.ctl("corpus", "show", corpus)["chunks"]]

    def stop(self, name):
        process = next(p for p in self.fleet.processes if f"--name={name}" in p.args)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 0)

    def attending(self):
        """Returns a function that ends the attends and returns how many there were."""
        end, count, failures = threading.Event(), [0], []

        def attend():
            while not end.is_set():
                result = self.run_ctl("attend", "--corpus", "docs", "--layer", 0, "--queries", self.query,
                                      "--out", self.folder / "partial.safetensors")
                count[0] += 1
                if result.returncode != 0:
                    failures.append(result.stderr)

        thread = threading.Thread(target=attend)
        thread.start()

        def finish():
            end.set()
            thread.join()
            self.assertEqual(failures, [])
            self.assertGreater(count[0], 0)

        return finish

    def test_a_holder_is_drained_and_stops(self):
        finish = self.attending()
        drained = self.ctl("holder", "drain", "h1")
        self.assertTrue(drained["may_go"])
        self.assertEqual((drained["chunk_count"], drained["bytes_left"]), (0, 0))
        self.stop("h1")
        finish()
        self.assertEqual({tuple(holders) for holders in self.lists()}, {("h0", "h2")})
        self.assertEqual(self.run_ctl("corpus", "verify", "docs").returncode, 0)
        self.assertIn("may go", self.run_ctl("holder", "drain", "h1").stdout)

    def test_a_drained_holder_takes_no_chunks_until_the_drain_ends(self):
        self.ctl("holder", "drain", "h0", "--no-wait")
        other = self.folder / "other.safetensors"
        Rows(2, 640, 0).write(other)
        self.ctl("corpus", "load", "other", other, "--chunk-tokens", 32, "--replicas", 2)
        self.assertEqual({tuple(holders) for holders in self.lists("other")}, {("h1", "h2")})
        refused = self.run_ctl("corpus", "load", "three", other, "--chunk-tokens", 32, "--replicas", 3)
        self.assertNotEqual(refused.returncode, 0)
        ended = self.ctl("holder", "undrain", "h0")
        self.assertFalse(ended["is_draining"])
        self.ctl("corpus", "load", "three", other, "--chunk-tokens", 32, "--replicas", 3)
        self.assertEqual({tuple(holders) for holders in self.lists("three")}, {("h0", "h1", "h2")})

    def test_a_drain_that_cannot_end_reports_the_reason(self):
        for name in ("h0", "h1"):
            self.ctl("holder", "drain", name, "--no-wait")
        late = self.run_ctl("holder", "drain", "h2", "--timeout", "4s")
        self.assertEqual(late.returncode, DEADLINE_EXIT, late.stderr)
        self.assertIn("no other holder has room", late.stderr)
        self.assertIn("the drain continues", late.stderr)
        self.assertEqual(self.run_ctl("corpus", "verify", "docs").returncode, 0)
        unknown = self.run_ctl("holder", "drain", "h9")
        self.assertEqual(unknown.returncode, NOT_FOUND_EXIT, unknown.stderr)

    def test_a_killed_holder_is_replaced(self):
        finish = self.attending()
        victim = next(p for p in self.fleet.processes if "--name=h2" in p.args)
        victim.kill()
        victim.wait()
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while {tuple(holders) for holders in self.lists()} != {("h0", "h1")}:
            self.assertLess(time.monotonic(), deadline, "a copy of each chunk is still missing")
        finish()
        self.assertEqual(self.run_ctl("corpus", "verify", "docs").returncode, 0)
        while "chunks-under-replicated" in (report := self.run_ctl("health").stdout):
            self.assertLess(time.monotonic(), deadline, report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
