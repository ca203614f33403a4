#!/usr/bin/python3
"""Goal: a process that copied chunks is shown with their holders, but only while it may answer.

Method: a directory, a holder, and a ckvd that is holder and requester, on loopback. ckvctl has it
copy chunks and shows their holders. After that ckvd is killed, ckvctl polls until its lease has
expired. Uses none of ckv's code, only the two programs.

    python3 tests/e2e/replica_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import PROGRAMS, Fleet, Rows

# A lease of 1 s, on a machine that may be busy.
GONE_TIMEOUT_S = 60


class ReplicaTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-replica-")
        self.addCleanup(self.temporary.cleanup)
        folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(folder, holders=1)
        self.addCleanup(self.fleet.stop)
        path = folder / "rows.safetensors"
        Rows(1, 70, 0).write(path)
        # Loaded before there is another holder, so h0 has it all.
        self.ctl("corpus", "load", "docs", path, "--chunk-tokens", 32)
        self.text = folder / "text"
        self.text.write_text("a corpus of more than one chunk, read twice " * 4)
        self.ctl("corpus", "load", "text", self.text, "--text", "--chunk-tokens", 64)
        self.both = self.fleet.start("both", "--role=holder,requester", "--lease-ttl=1s",
                                     f"--directory={self.fleet.directory}", "--store-capacity=16MiB")

    def run_ctl(self, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.fleet.requester
        return subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=env, timeout=120,
                              capture_output=True, text=True, check=False)

    def ctl(self, *arguments):
        result = self.run_ctl(*arguments, "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def leased(self):
        chunks = self.ctl("corpus", "show", "docs")["chunks"]
        self.assertEqual({h for c in chunks for h in c["holders"]}, {"h0"})
        return [c["leased"] for c in chunks]

    def test_shown_while_it_may_answer(self):
        self.assertEqual(self.leased(), [[], [], []])
        done = self.ctl("chunk", "replicate", "docs", "--chunks", "0-1", "--at", self.both)
        self.assertEqual((done["fetched_count"], done["present_count"]), (2, 0))
        self.assertEqual(self.leased(), [["both"], ["both"], []])
        self.assertIn("h0,+both", self.run_ctl("corpus", "show", "docs").stdout)
        place = self.ctl("chunk", "locate", "--corpus", "docs", "--ordinal", 1)["places"][0]
        self.assertEqual((place["holders"], place["leased"]), (["h0"], ["both"]))

        again = self.ctl("chunk", "replicate", "docs", "--at", self.both)
        self.assertEqual((again["fetched_count"], again["present_count"]), (1, 2))
        released = self.ctl("chunk", "release", "docs", "--chunks", "1", "--at", self.both)
        self.assertEqual(released["released_count"], 1)
        self.assertEqual(self.leased(), [["both"], [], ["both"]])

        lists = self.ctl("chunk", "replicate", "docs", "--chunks", "2,0", "--at", self.both)
        self.assertEqual((lists["fetched_count"], lists["present_count"]), (0, 2))
        released = self.ctl("chunk", "release", "docs", "--chunks", "0,2", "--at", self.both)
        self.assertEqual(released["released_count"], 2)
        self.assertEqual(self.leased(), [[], [], []])
        lists = self.ctl("chunk", "replicate", "docs", "--chunks", "2,0", "--at", self.both)
        self.assertEqual((lists["fetched_count"], lists["present_count"]), (2, 0))

        self.fleet.processes[-1].kill()
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while self.leased() != [[], [], []]:
            self.assertLess(time.monotonic(), deadline, "the lease is over, and still it is told of")

    def test_a_dropped_corpus_takes_the_copies_with_it(self):
        self.ctl("chunk", "replicate", "docs", "--at", self.both)
        dropped = self.ctl("corpus", "drop", "docs")
        self.assertEqual((dropped["chunks_dropped"], dropped["warnings"]), (6, []))

    def test_a_chunk_pulled_by_its_requester_answers_others(self):
        """The requester of this process has its holder's chunks locally, and prefetches others into that holder."""
        agents = ("agents", "run", "--corpus", "text", "--text", self.text, "--count", 1, "--tokens", 2)
        hashes = {agent["tokens_hash"] for policy in ("route", "cache")
                  for agent in self.ctl(*agents, "--policy", policy, "--requester", self.both)["agents"]}
        self.assertEqual(len(hashes), 1, "the same tokens")
        cached = self.ctl("status", "--requester", self.both)["requester"]["local_cache"]
        self.assertEqual((cached["prefetched_bytes"], cached["prefetch_failed_count"]), (0, 0), "copies, which take no room twice")
        self.assertGreater(cached["prefetch_count"], 0)
        self.assertIn(("fetch", "policy_cache"), {(d["primitive"], d["reason"]) for d in cached["decisions"]})
        chunks = self.ctl("corpus", "show", "text")["chunks"]
        self.assertEqual({tuple(c["leased"]) for c in chunks}, {("both",)})

    def test_a_process_without_a_holder_shows_a_remedy(self):
        result = self.run_ctl("chunk", "replicate", "docs", "--at", self.fleet.requester)
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertIn("--role=holder,requester", result.stderr)

    def test_an_address_of_something_else_names_its_option(self):
        nobody = self.run_ctl("chunk", "replicate", "docs", "--at", "127.0.0.1:1")
        self.assertEqual(nobody.returncode, 4, nobody.stderr)
        self.assertIn("name another with --at", nobody.stderr)
        directory = self.run_ctl("chunk", "replicate", "docs", "--at", self.fleet.directory)
        self.assertEqual(directory.returncode, 1, directory.stderr)
        self.assertIn("not served there", directory.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
