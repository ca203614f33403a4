#!/usr/bin/python3
"""Goal: a new user can run `ckvctl characterize` on a fleet and open its report in a browser.

Method: a directory, two holders and a requester on loopback. Headless Chromium opens the report as a
file, without a network. The test reads the page after the browser has built it. Without Chromium,
that one test is skipped, with the reason.

    python3 tests/e2e/characterize_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

from ctl_fleet import PROGRAMS, Fleet

CHROMIUM = shutil.which("chromium")


class CharacterizeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-characterize-")
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.fleet = Fleet(cls.folder, holders=2)
        cls.costs = cls.folder / "costs"
        cls.first = cls.ctl("characterize", "--quick", "--dir", cls.costs, "-o", "json")

    @classmethod
    def tearDownClass(cls):
        cls.fleet.stop()
        cls.temporary.cleanup()

    @classmethod
    def ctl(cls, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = cls.fleet.requester
        done = subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=env, timeout=240,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def test_every_sweep_was_measured_over_each_fabric(self):
        with open(self.costs / "samples.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        self.assertEqual(len(rows), self.first["points"])
        sweeps = {(row["sweep"], row["fabric"]) for row in rows}
        for fabric in ("shm", "tcp"):
            for sweep in ("route", "fetch", "fan-in", "scatter", "gather", "congestion"):
                self.assertIn((sweep, fabric), sweeps)
        self.assertIn(("local", ""), sweeps)
        self.assertTrue(all(float(row["us"]) > 0 for row in rows))
        # Routed bytes at 256 rows against one layer of 2048 tokens, counted on the lanes: the
        # paper's 76 % fewer, less two headers.
        for row in rows:
            if (row["sweep"], row["query_rows"], row["tokens"]) == ("route", "256", "2048"):
                routed = int(row["bytes_out"]) + int(row["bytes_in"])
                self.assertAlmostEqual(1 - routed / (2048 * 1152), 0.763, delta=0.001)

    def test_leaves_nothing_on_the_fleet(self):
        self.assertEqual(self.ctl("corpus", "list", "-o", "json")["corpora"], [])

    def test_again_measures_nothing(self):
        before = (self.costs / "samples.csv").read_text(encoding="utf-8")
        again = self.ctl("characterize", "--quick", "--dir", self.costs, "-o", "json")
        self.assertEqual(self.first["points_from_before"], 0)
        self.assertEqual(again["points_from_before"], again["points"])
        self.assertEqual((self.costs / "samples.csv").read_text(encoding="utf-8"), before)

    def test_calibrate_writes_what_it_prints(self):
        path = self.folder / "profile.json"
        printed = self.ctl("calibrate", "--profile", path, "--fabric", "tcp", "-o", "json")
        self.assertEqual(json.loads(path.read_text(encoding="utf-8")), printed)
        self.assertEqual([lane["fabric"] for lane in printed["lanes"]], ["tcp"])
        self.assertGreater(printed["here"]["prefill_per_token_layer_us"], 0)
        # The profile also contains the choice of a kernel target.
        self.assertEqual(printed["kernel"]["target"], printed["here"]["kernel_target"])
        self.assertIn(printed["kernel"]["target"], printed["kernel"]["machine"])

    def test_a_browser_shows_it(self):
        if CHROMIUM is None:
            self.skipTest(skip.say("no chromium here", skip.PACKAGES))
        page = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/browser",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", (self.costs / "report.html").as_uri()],
            capture_output=True, text=True, timeout=120, check=True).stdout
        for heading in ("Route: measured against the model", "Which is cheapest", "The cost of a chunk", "Fan-in",
                        "Scatter", "Congestion", "Bytes moved a layer"):
            self.assertIn(f"<h2>{heading}</h2>", page)
        self.assertGreater(page.count("<svg"), 10)
        self.assertEqual(page.count("<svg"), page.count("</svg>"))
        self.assertNotIn("nothing was measured", page)
        self.assertNotIn("NaN", page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
