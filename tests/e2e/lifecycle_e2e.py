#!/usr/bin/python3
"""Goal: an operator returns a corpus to an earlier version, and corpora end and stay within their size by themselves.

Method: a directory with a folder, two holders and a requester, on loopback, and ckvctl. Partials are compared with attention in
float64 over the rows of each version. Uses none of ckv's code, only the two programs.

    python3 tests/e2e/lifecycle_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import pathlib
import signal
import struct
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, D_V, PROGRAMS, Fleet, Rows, attend, floats, from_bf16, read_safetensors, write_safetensors

EXPIRY_TIMEOUT_S = 60
CHUNKS, TOKENS = 4, 32
NOT_FOUND_EXIT = 3


class LifecycleTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-lifecycle-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(self.folder, holders=2, durable=True, keyed=True, directory_options=["--directory-expiry-grace=1s"])
        self.addCleanup(self.fleet.stop)
        self.values = [[0.5] * D_QK]
        self.query = self.folder / "q.safetensors"
        write_safetensors(self.query, {"q": ("F32", [1, D_QK], struct.pack(f"<{D_QK}f", *self.values[0]))})
        self.rows = {}
        for seed in (1, 2, 3):
            self.rows[seed] = Rows(seed, TOKENS * CHUNKS, 0)
            self.rows[seed].write(self.file(seed))

    def file(self, seed):
        return self.folder / f"rows-{seed}.safetensors"

    def run_ctl(self, *arguments):
        return self.fleet.run_ctl(*arguments)

    def ctl(self, *arguments):
        result = self.run_ctl(*arguments, "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def load(self, name, seed, *options):
        return self.ctl("corpus", "load", name, self.file(seed), "--chunk-tokens", TOKENS, *options)["version"]

    def names(self):
        return sorted(c["name"] for c in self.ctl("corpus", "list")["corpora"])

    def chunk_count(self):
        """Chunks that holders have, whether or not a corpus places them."""
        return sum(h["chunk_count"] for h in self.ctl("status")["holders"])

    def assert_answers_as(self, name, seed):
        out = self.folder / "partial.safetensors"
        self.ctl("attend", "--corpus", name, "--layer", 0, "--queries", self.query, "--out", out)
        got = floats(read_safetensors(out)[0]["o"])
        rows = [[from_bf16(bits) for bits in row] for row in self.rows[seed].layers[0]]
        want = attend(self.values, rows)[0][0]
        self.assertLess(max(abs(a - b) for a, b in zip(got[:D_V], want)), 0.02)

    def test_a_corpus_returns_to_an_earlier_version(self):
        first = self.load("docs", 1, "--keep-versions", 1)
        second = self.load("docs", 2, "--replace")
        self.assertEqual(self.names(), ["docs", f"docs@{first}"])
        self.assert_answers_as("docs", 2)
        self.assert_answers_as(f"docs@{first}", 1)
        back = self.ctl("corpus", "rollback", "docs")
        self.assertEqual((back["from"], back["to"]), (second, first))
        self.assert_answers_as("docs", 1)
        self.assertEqual(self.names(), ["docs", f"docs@{second}"])
        # The state outlasts its processes.
        directory = self.fleet.processes[0]
        directory.send_signal(signal.SIGTERM)
        self.assertEqual(directory.wait(20), 0)
        self.fleet.start("directory", "--role=directory", f"--directory-path={self.folder}/directory",
                         listen=self.fleet.directory)
        # The holders register with it again first.
        self.ctl("--wait", "30s", "corpus", "rollback", "docs", "--to", second)
        self.assert_answers_as("docs", 2)
        unknown = self.run_ctl("corpus", "rollback", "docs", "--to", 7)
        self.assertEqual(unknown.returncode, NOT_FOUND_EXIT, unknown.stderr)
        self.assertIn("kept are:", unknown.stderr)

    def test_old_versions_leave_nothing_behind(self):
        self.load("docs", 1, "--keep-versions", 1)
        self.load("docs", 2, "--replace")
        third = self.load("docs", 3, "--replace")
        self.assertEqual(len(self.names()), 2)
        self.assertEqual(self.chunk_count(), 2 * CHUNKS)
        shown = self.ctl("corpus", "show", "docs")
        self.assertEqual((shown["version"], shown["kept_version_count"]), (third, 1))
        self.ctl("corpus", "set", "docs", "--keep-versions", 0)
        self.assertEqual((self.names(), self.chunk_count()), (["docs"], CHUNKS))
        none = self.run_ctl("corpus", "rollback", "docs")
        self.assertEqual(none.returncode, NOT_FOUND_EXIT, none.stderr)
        self.assertIn("--keep-versions", none.stderr)
        self.load("docs", 1, "--replace", "--keep-versions", 2)
        self.load("docs", 2, "--replace")
        self.ctl("corpus", "drop", "docs")
        self.assertEqual((self.names(), self.chunk_count()), ([], 0))

    def test_a_corpus_is_no_larger_than_its_quota(self):
        bytes_of = TOKENS * CHUNKS * 2 * D_QK * 2  # two layers of bf16
        small = self.run_ctl("corpus", "load", "docs", self.file(1), "--chunk-tokens", TOKENS, "--quota", f"{bytes_of - 1}B")
        self.assertNotEqual(small.returncode, 0)
        self.assertIn("its quota is", small.stderr)
        self.assertEqual(self.chunk_count(), 0, "it was refused before the first row was sent")
        self.load("docs", 1, "--quota", f"{bytes_of}B")
        more = self.folder / "more.safetensors"
        Rows(9, TOKENS, TOKENS * CHUNKS).write(more)
        extended = self.run_ctl("corpus", "load", "docs", more, "--extend")
        self.assertNotEqual(extended.returncode, 0)
        self.assertIn("corpus set docs --quota", extended.stderr)
        self.ctl("corpus", "set", "docs", "--quota", 0)
        self.ctl("corpus", "load", "docs", more, "--extend")

    def test_a_corpus_ends_by_itself(self):
        self.load("stays", 1)
        self.load("brief", 2, "--ttl", "1s")
        deadline = time.monotonic() + EXPIRY_TIMEOUT_S
        while self.names() != ["stays"]:
            self.assertLess(time.monotonic(), deadline)
        self.assertIn("its time to live has ended", (self.folder / "directory.log").read_text())
        self.assertEqual(self.run_ctl("corpus", "show", "brief").returncode, NOT_FOUND_EXIT)
        self.assert_answers_as("stays", 1)
        shown = self.ctl("corpus", "set", "stays", "--ttl", "720h")
        self.assertGreater(shown["expires_at_ms"], time.time() * 1000 + 719 * 3600 * 1000)
        self.assertIn("expires in", self.run_ctl("corpus", "show", "stays").stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    programs, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = programs.ckvd, programs.ckvctl
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
