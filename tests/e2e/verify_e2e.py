#!/usr/bin/python3
"""Goal: an operator finds out whether every copy of a corpus is whole, and has those put again that
are not.

Method: a directory and two holders with folders, on loopback; files are damaged and taken away while
a holder is down. Nothing of ckv's code is used but the two programs.

    python3 tests/e2e/verify_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import PROGRAMS, Fleet, Rows

REPAIR_TIMEOUT_S = 60
CHUNKS = 6


class VerifyTest(unittest.TestCase):
    tenant = ""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-verify-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(self.folder, holders=0, keyed=bool(self.tenant))
        self.addCleanup(self.fleet.stop)
        self.holders = {}
        for name in ("h0", "h1"):
            self.start(name)
        path = self.folder / "rows.safetensors"
        Rows(1, 32 * CHUNKS, 0).write(path)
        self.ctl("corpus", "load", "docs", path, "--chunk-tokens", 32, "--replicas", 2)
        self.ids = [c["id"] for c in self.ctl("corpus", "show", "docs")["chunks"]]

    def start(self, name):
        self.fleet.start(name, "--role=holder", f"--directory={self.fleet.directory}",
                         f"--store-path={self.folder / name}", "--store-capacity=16MiB",
                         "--store-scrub-bytes-per-second=0", "--lease-ttl=1s")
        self.holders[name] = self.fleet.processes[-1]

    def stop(self, name):
        process = self.holders[name]
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        self.fleet.processes.remove(process)

    def run_ctl(self, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.fleet.requester
        tenant = ["--tenant", self.tenant] if self.tenant else []
        return subprocess.run([PROGRAMS.ckvctl, *tenant, *map(str, arguments)], env=env, timeout=120,
                              capture_output=True, text=True, check=False)

    def ctl(self, *arguments, code=0):
        result = self.run_ctl(*arguments, "-o", "json")
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)

    def verify(self, *arguments, code=0):
        found = self.ctl("corpus", "verify", "docs", *arguments, code=code)
        self.assertEqual(found["whole"], code == 0)
        return found, {h["id"]: h for h in found["holders"]}

    def file_of(self, holder, chunk):
        name = self.ids[chunk]
        return self.folder / holder / "chunks" / name[:2] / name[2] / name

    def flip(self, holder, chunk):
        path = self.file_of(holder, chunk)
        raw = bytearray(path.read_bytes())
        raw[-100] ^= 4
        path.write_bytes(raw)

    def test_a_whole_corpus_has_no_findings(self):
        found, holders = self.verify()
        self.assertEqual(found["checked_count"], CHUNKS)
        for name in ("h0", "h1"):
            self.assertEqual(holders[name]["whole"], CHUNKS)
            self.assertGreater(holders[name]["bytes_checked"], CHUNKS * 32 * 160)
        result = self.run_ctl("corpus", "verify", "docs")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"HOLDER +CHUNKS +WHOLE")
        self.assertIn("100 %", result.stderr)
        self.assertRegex(self.run_ctl("status").stdout, r"CHUNKS +COLD +TOKENS +USED +CAPACITY")

    def test_a_sample_is_drawn_by_its_seed(self):
        one, holders = self.verify("--sample", 2, "--seed", 5)
        self.assertEqual(one["checked_count"], 2)
        self.assertEqual(holders["h0"]["chunks"], 2)
        self.assertEqual(self.verify("--sample", "50%")[0]["checked_count"], 3)
        self.assertEqual(self.verify("--sample", "1%")[0]["checked_count"], 1)
        for bad in ("0", "101%", "x", "5%%"):
            result = self.run_ctl("corpus", "verify", "docs", "--sample", bad)
            self.assertEqual(result.returncode, 2, bad)
            self.assertIn("--sample", result.stderr)

    def test_damage_on_disk_is_repaired_from_memory(self):
        self.flip("h0", 2)
        found, holders = self.verify()
        self.assertEqual(holders["h0"]["healed"], 1)
        self.assertEqual(found["findings"][0]["verdict"], "healed")
        self.assertEqual(self.verify()[1]["h0"]["healed"], 0)

    def test_missing_chunks_are_put_again(self):
        """By the holder itself, or by --repair, whichever is first."""
        self.stop("h0")
        for chunk in (1, 4):
            self.file_of("h0", chunk).unlink()
        self.start("h0")
        result = self.run_ctl("corpus", "verify", "docs", "-o", "json")
        self.assertIn(result.returncode, (0, 9))
        report = json.loads(result.stdout)
        missing = {h["id"]: h["missing"] for h in report["holders"]}
        self.assertLessEqual({(f["ordinal"], f["holder"], f["verdict"]) for f in report["findings"]},
                             {(1, "h0", "missing"), (4, "h0", "missing")})
        self.assertEqual((missing["h0"], missing["h1"]), (len(report["findings"]), 0))
        self.assertLessEqual(self.verify("--repair")[1]["h0"]["repaired"], missing["h0"])
        self.assertEqual(self.verify()[1]["h0"]["whole"], CHUNKS)
        for chunk in (1, 4):
            self.assertTrue(self.file_of("h0", chunk).exists())

    def test_damage_is_reported_and_repaired_by_the_holder(self):
        self.stop("h0")
        self.flip("h0", 3)
        self.start("h0")
        found, holders = self.verify(code=9)
        self.assertEqual(holders["h0"]["damaged"], 1)
        self.assertIn("checksum", found["findings"][0]["why"])
        deadline = time.monotonic() + REPAIR_TIMEOUT_S
        while self.run_ctl("corpus", "verify", "docs").returncode != 0:
            self.assertLess(time.monotonic(), deadline)
        # The rows are here before the repairer has seen that they are.
        def counts():
            holder = next(h for h in self.ctl("status")["holders"] if h["id"] == "h0")
            return holder["damaged_count"], holder["repaired_count"]
        while counts() != (1, 1):
            self.assertLess(time.monotonic(), deadline, counts())
        self.assertIn("found 1 chunk damaged", self.run_ctl("status").stdout)

    def test_a_chunk_that_is_whole_nowhere_cannot_be_repaired(self):
        for name in ("h0", "h1"):
            self.stop(name)
            self.file_of(name, 0).unlink()
            self.start(name)
        found, _ = self.verify("--repair", code=9)
        self.assertEqual(len(found["findings"]), 2)
        self.assertIn("no whole copy", found["findings"][0]["why"])

    def test_a_holder_that_is_away(self):
        self.stop("h1")
        found, holders = self.verify(code=4)
        self.assertEqual(holders["h1"]["unanswered"], CHUNKS)
        self.assertIn("h1", holders["h1"]["error"])
        self.assertEqual(holders["h0"]["whole"], CHUNKS)
        self.assertEqual(self.run_ctl("corpus", "verify", "nothing").returncode, 3)


class TenantsVerifyTest(VerifyTest):
    """The same, with ids made by a tenant's key: a copy that lost its seal on the way would have another id."""

    tenant = "acme"

    def test_ids_are_the_tenants_and_outlive_export_and_restart(self):
        path = self.folder / "exported.safetensors"
        self.ctl("corpus", "export", "docs", "--out", path)
        for name in ("h0", "h1"):
            self.stop(name)
            self.start(name)
        again = self.ctl("corpus", "load", "docs", path, "--chunk-tokens", 32, "--replace")
        self.assertEqual(again["bytes_sent"], 0, again)
        self.assertEqual([c["id"] for c in self.ctl("corpus", "show", "docs")["chunks"]], self.ids)
        self.tenant = ""
        self.ctl("corpus", "load", "shared", path, "--chunk-tokens", 32)
        shared = {c["id"] for c in self.ctl("corpus", "show", "shared")["chunks"]}
        self.assertEqual(shared & set(self.ids), set())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
