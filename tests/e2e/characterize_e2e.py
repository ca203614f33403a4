#!/usr/bin/python3
"""Goal: a new user can run `ckvctl characterize` on a fleet and open its report in a browser.

Method: a directory, two holders and a requester on loopback. Headless Chromium opens the report as a
file, without a network. The test reads the page after the browser has built it. Without Chromium or
matplotlib, the tests of the report are skipped, with the reason. The script that draws it runs on samples
of known times, too.

    python3 tests/e2e/characterize_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import csv
import importlib.util
import json
import os
import pathlib
import re
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
MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "client" / "tools" / "ctl" / "query" / "figures.py"
HEADINGS = ("Two constants a fabric", "Does bandwidth depend on the payload?", "Route: measured against the model",
            "Bytes: route or fetch", "The cost of a chunk", "Scatter", "Kernel over requesters",
            "Selection and the size of the store", "Fan-in", "Staging", "Cost over bandwidth", "Route over fabrics",
            "Congestion", "Bytes moved a layer", "Not measured here")
# A disturbed run has none.
FINDINGS = ("How well the model fits, and what its choices cost", "Which is cheapest")
SWEEPS = ("route", "fetch", "fan-in", "scatter", "gather", "staging", "congestion", "store", "payload")
PHONE = 390  # pixels


class CharacterizeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-characterize-")
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.fleet = Fleet(cls.folder, holders=2, capacity="768MiB")
        cls.addClassCleanup(cls.fleet.stop)
        cls.costs = cls.folder / "costs"
        # V2-Lite's shape with few layers, which its measurements are repeated over.
        (cls.folder / "model.json").write_text(json.dumps({
            "model": "six layers", "revision": "", "layers": 6, "d_qk": 576, "d_v": 512, "d_rope": 64, "dtype": "bf16",
            "rope_style": "interleaved", "rope_theta": 10000.0, "softmax_scale": .1147}), encoding="utf-8")
        cls.options = ("--quick", "--dir", cls.costs, "--geometry", cls.folder / "model.json", "--heads", 16,
                       "--prefill-us", 1)
        cls.first = cls.ctl("characterize", *cls.options, "-o", "json")

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
            for sweep in SWEEPS:
                self.assertIn((sweep, fabric), sweeps)
        self.assertIn(("local", ""), sweeps)
        # Figure 4's heads and selections.
        self.assertEqual({row["query_rows"] for row in rows if row["sweep"] == "kernel"}, {"16", "128"})
        for sweep in ("scatter", "store"):
            self.assertEqual({row["tokens"] for row in rows if row["sweep"] == sweep}, {"512", "1024", "2048"})
        self.assertEqual({row["parallel"] for row in rows if row["sweep"] == "staging"}, {"1", "2", "4", "8", "16"})
        self.assertEqual({row["query_rows"] for row in rows if row["sweep"] == "congestion"}, {"1", "256", "1024"})
        payloads = {int(row["tokens"]) for row in rows if row["sweep"] == "payload"}
        self.assertIn(2184, payloads)
        self.assertGreater(max(payloads), 5 * min(payloads))
        self.assertTrue(all(float(row["us"]) > 0 for row in rows))
        # Routed bytes at 256 rows against one layer of 2048 tokens, counted on the lanes: the
        # paper's 76 % fewer, less two headers.
        for row in rows:
            if (row["sweep"], row["query_rows"], row["tokens"]) == ("route", "256", "2048"):
                routed = int(row["bytes_out"]) + int(row["bytes_in"])
                self.assertAlmostEqual(1 - routed / (2048 * 1152), 0.763, delta=0.001)

    def test_a_model_is_named_once(self):
        for options, words in ((("--geometry", "gpt-2"), "known are: deepseek-v2-lite"),
                               (("--geometry", "glm-5", "--reference-engine"), "each name a model: give one"),
                               (("--geometry", self.folder / "model.json"), "give --heads"),
                               (("--corpus", "none"), "none")):
            with self.assertRaisesRegex(AssertionError, words):
                self.ctl("calibrate", *options)

    def test_a_profile_of_one_model_predicts_another_of_its_widths(self):
        """The constants are taken as they are: only routes, fetches and recomputing are measured."""
        other = self.folder / "other"
        options = ("characterize", "--quick", "--no-sweeps", "--dir", other, "--geometry", "deepseek-v2-lite",
                   "--fabric", "shm", "--mq", "1,16", "--tokens", "64,128", "--prefill-us", 2, "-o", "json")
        done = self.ctl(*options, "--profile", self.costs / "profile.json")
        with open(other / "samples.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        self.assertEqual(len(rows), done["points"])
        routes = [row for row in rows if row["sweep"] == "route"]
        self.assertEqual({(row["query_rows"], row["tokens"]) for row in routes},
                         {(rows, tokens) for rows in ("1", "16") for tokens in ("64", "128")})
        self.assertEqual({row["sweep"] for row in rows}, {"route", "fetch", "local", "here"})
        self.assertTrue(all(0 < float(row["model_kernel_us"]) for row in routes))
        profiles = [json.loads((folder / "profile.json").read_text(encoding="utf-8")) for folder in (self.costs, other)]
        self.assertEqual(profiles[0]["lanes"], profiles[1]["lanes"])
        self.assertEqual(profiles[1]["here"]["prefill_per_token_layer_us"], 2)
        changed = self.folder / "changed.json"
        profiles[0]["lanes"][0]["t_probe_us"] += 1
        changed.write_text(json.dumps(profiles[0]), encoding="utf-8")
        with self.assertRaisesRegex(AssertionError, "use another --dir"):
            self.ctl(*options, "--profile", changed)
        for wrong, words in ((("--mq", "16,1"), "--mq: values must rise"), (("--tokens", "64"), "two sizes at least")):
            with self.assertRaisesRegex(AssertionError, words):
                self.ctl("characterize", "--dir", self.folder / "none", *wrong)

    def test_leaves_nothing_on_the_fleet(self):
        self.assertEqual(self.ctl("corpus", "list", "-o", "json")["corpora"], [])

    def test_again_measures_nothing(self):
        before = (self.costs / "samples.csv").read_text(encoding="utf-8")
        again = self.ctl("characterize", *self.options, "-o", "json")
        self.assertEqual(self.first["points_from_before"], 0)
        self.assertEqual(again["points_from_before"], again["points"])
        self.assertEqual((self.costs / "samples.csv").read_text(encoding="utf-8"), before)
        hidden = (self.costs / "profile.json").rename(self.costs / "hidden.json")
        with self.assertRaisesRegex(AssertionError, "has samples, but .*profile.json is not of their run"):
            self.ctl("characterize", *self.options)
        hidden.rename(self.costs / "profile.json")

    def test_calibrate_writes_what_it_prints(self):
        path = self.folder / "profile.json"
        printed = self.ctl("calibrate", "--profile", path, "--fabric", "tcp", "--reference-engine", "-o", "json")
        self.assertEqual(json.loads(path.read_text(encoding="utf-8")), printed)
        self.assertEqual([lane["fabric"] for lane in printed["lanes"]], ["tcp"])
        self.assertGreater(printed["here"]["prefill_per_token_layer_us"], 0)
        # The profile also contains the choice of a kernel target.
        self.assertEqual(printed["kernel"]["target"], printed["here"]["kernel_target"])
        self.assertIn(printed["kernel"]["target"], printed["kernel"]["machine"])

    def test_reports_where_the_report_is_or_which_package_draws_it(self):
        drawn = self.first["report"] is not None  # by Debian's Python, or by the first on PATH
        self.assertIn(drawn, (True, MATPLOTLIB))
        self.assertEqual(drawn, (self.costs / "report.html").exists())
        report = json.loads((self.costs / "report.json").read_text(encoding="utf-8"))
        self.assertEqual(report["disturbed"], self.first["disturbed"] or "")
        if self.first["disturbed"]:  # by what else runs here
            self.assertIn("repeats differ", self.first["disturbed"])
            self.assertEqual((self.first["findings"], self.first["answer"]), ([], None))
        else:
            self.assertEqual([one["fabric"] for one in report["findings"]],
                             [one["fabric"] for one in self.first["findings"]])
            self.assertRegex(self.first["answer"], "^Over (shm|tcp), a decode step of six layers .16 query rows, "
                                                   "6 layers. over 2048 tokens elsewhere takes .* by routing")
        self.assertTrue(all(one["grid"] for one in report["findings"]))
        self.assertIn("here", [kernel["name"] for kernel in report["kernels"]])
        self.assertEqual((self.costs / "figures.py").read_text(encoding="utf-8"), SCRIPT.read_text(encoding="utf-8"))

    def test_a_browser_shows_it(self):
        if not MATPLOTLIB:
            self.skipTest(skip.say("no matplotlib here", skip.PACKAGES))
        if CHROMIUM is None:
            self.skipTest(skip.say("no chromium here", skip.PACKAGES))
        page = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/browser",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", (self.costs / "report.html").as_uri()],
            capture_output=True, text=True, timeout=120, check=True).stdout
        for heading in HEADINGS:
            self.assertIn(f"<h2>{heading}</h2>", page)
        for heading in FINDINGS:
            self.assertEqual(f"<h2>{heading}</h2>" in page, not self.first["disturbed"], heading)
        self.assertIn("The paper: ", page)
        self.assertGreater(page.count("<svg"), 10)
        self.assertEqual(page.count("<svg"), page.count("</svg>"))
        self.assertNotIn("NaN", page)

    def test_it_fits_a_phone(self):
        """Nothing but tables and plots that scroll by themselves is wider than the window."""
        if not MATPLOTLIB:
            self.skipTest(skip.say("no matplotlib here", skip.PACKAGES))
        if CHROMIUM is None:
            self.skipTest(skip.say("no chromium here", skip.PACKAGES))
        # A frame has the width of a phone, whatever the least width of a browser's window is.
        measure = ("<script>addEventListener('load', () => document.title = document.documentElement.scrollWidth)</script>")
        (self.folder / "page.html").write_text((self.costs / "report.html").read_text(encoding="utf-8") + measure,
                                               encoding="utf-8")
        frame = self.folder / "phone.html"
        frame.write_text(f"""<iframe id=page src=page.html width={PHONE} height=800 style="border: 0"></iframe><script>
            addEventListener("load", () => document.body.append("wide: " + page.contentDocument.title))</script>""")
        shown = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/browser",
             "--allow-file-access-from-files", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", frame.as_uri()],
            capture_output=True, text=True, timeout=120, check=True).stdout
        found = re.search(r"wide: (\d+)", shown)
        self.assertIsNotNone(found, shown[-500:])
        self.assertLessEqual(int(found.group(1)), PHONE)


class FiguresTest(unittest.TestCase):
    """The script on its own."""

    def setUp(self):
        if not MATPLOTLIB:
            self.skipTest(skip.say("no matplotlib here", skip.PACKAGES))
        temporary = tempfile.TemporaryDirectory(prefix="ckv-figures-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        shutil.copy(SCRIPT, self.folder)

    def draw(self, samples, report):
        head = ("sweep,fabric,query_rows,tokens,parallel,us,model_us,runs,bytes_out,bytes_in,error_us,kernel_us,spread,model_kernel_us\n"
                "# a subject\n")
        (self.folder / "samples.csv").write_text(head + "".join(f"{line},0\n" if line.count(",") == 12 else f"{line},0,1,0\n"
                                                                for line in samples), encoding="utf-8")
        (self.folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
        subprocess.run([sys.executable, self.folder / SCRIPT.name], timeout=120, check=True)
        return (self.folder / "report.html").read_text(encoding="utf-8")

    def test_known_samples_make_one_page(self):
        samples = ["route,shm,16,64,1,10,11,5,18432,16512,0", "route,shm,1024,64,1,200,190,5,1179648,1056768,0",
                   "fetch,shm,0,64,1,100,0,3,0,0,0", "here,,16,64,1,5,0,3,0,0,0", "here,,1024,64,1,150,0,3,0,0,0",
                   "local,,0,64,1,5000,0,1,0,0,0"]
        for sweep in ("fan-in", "scatter", "gather", "staging", "congestion", "store", "kernel"):
            samples += [f"{sweep},shm,16,64,{count},{10 * count},0,3,10,10,0,{4 + count},1" for count in (1, 2, 4)]
        # 2,184 and 4,368 bytes a row: 1,023 rows more take their bytes at 4 and 2 GB/s.
        samples += ["payload,shm,1,2184,1,20,0,3,0,0,0,10,1", "payload,shm,1024,2184,1,669.104,0,3,0,0,0,100,1",
                    "payload,shm,1,4368,1,20,0,3,0,0,0,10,1", "payload,shm,1024,4368,1,2346.416,0,3,0,0,0,100,1"]
        grid = [{"query_rows": rows, "tokens": 64, "steps": steps, "best": best, "right": right}
                for rows, steps, best, right in ((16, 1, "route", True), (16, 100, "fetch", True),
                                                 (1024, 1, "route", False), (1024, 100, "fetch", True))]
        findings = {"fabric": "shm", "mape": .07, "mape_large": .05, "routes": 2, "regret": .1, "right_share": .3,
                    "clear_points": 3, "resolved_right_share": 0, "resolved_points": 0, "grid": grid}
        lane = {"fabric": "shm", "t_probe_us": 10.3, "bandwidth_bytes_per_s": 4e9, "merge_per_row_us": 0,
                "over_bandwidth": [{"bandwidth_bytes_per_s": 1e9 * rate, "us": [900 / rate, 5000 + 9000 / rate, None]}
                                   for rate in (1, 10, 100)]}
        kernels = [{"name": "here", "about": "a row comes in in 60 ns",
                    "points": [[1, 48, 60, 65], [256, 2540, 60, 2546]]},
                   {"name": "h0 <over> shm", "about": "a floor", "points": [[1, 48, 60, 65]]},
                   {"name": "h0 over tcp", "about": "no floor was measured", "points": []}]
        page = self.draw(samples, {"title": "A <fleet> & \"its\" costs",
                                   "facts": [["holder", "h0 <script>alert(1)</script>"]],
                                   "answer": "Route <always>.", "disturbed": "", "layers": 2, "heads": 16,
                                   "row_bytes": 1152, "payload_bytes": 2184, "lanes": [lane],
                                   "findings": [findings], "kernels": kernels})
        for heading in (*HEADINGS, *FINDINGS, "Kernels and memory"):
            self.assertIn(f"<h2>{heading}</h2>", page)
        self.assertIn('<p class="answer">Route &lt;always&gt;.</p>', page)
        self.assertIn("shm: from 2.00 to 4.00 GB/s, x 2.00", page)
        self.assertIn("64 rows chosen (x 1.60)", page)  # the kernel's 5, 6 and 8 us
        for words in ("64 chosen rows, 2 layers (route x 4.0, fetch x 4.0 from 1 to 4 holders)", "elbow at 2",
                      "here: a row comes in in 60 ns", "h0 &lt;over&gt; shm: a floor", "measured, 64 tokens",
                      "bringing a row in: the floor", "the predicate chose another"):
            self.assertIn(words, page)
        for words in ("h0 over tcp", "<script", "src=", ">nan<"):
            self.assertNotIn(words, page)

    def test_the_elbow_is_where_latency_doubles(self):
        samples = [f"fan-in,tcp,16,256,{count},{us},0,1,0,0,0" for count, us in ((8, 21), (1, 10), (2, 11), (4, 19.9))]
        page = self.draw(samples, {"title": "costs", "facts": [], "layers": 2, "row_bytes": 1152, "findings": [],
                                   "kernels": []})
        self.assertIn("elbow at 4", page)
        self.assertNotIn("Congestion", page)

    def test_a_disturbed_run_has_no_findings(self):
        findings = {"fabric": "tcp", "mape": .07, "mape_large": .05, "routes": 2, "regret": .1, "right_share": .3,
                    "clear_points": 3, "resolved_right_share": 0, "resolved_points": 0,
                    "grid": [{"query_rows": 16, "tokens": 64, "steps": 1, "best": "route", "right": True}]}
        page = self.draw(["route,tcp,16,64,1,10,11,5,18432,16512,0"],
                         {"title": "costs", "facts": [], "answer": "Route.", "layers": 2, "row_bytes": 1152,
                          "disturbed": "the kernel here: repeats differ by 1.8 x (limit 1.5)", "findings": [findings],
                          "kernels": []})
        self.assertIn("The machine was disturbed while it was measured: the kernel here: repeats differ by 1.8 x", page)
        for words in (*FINDINGS, "Route."):
            self.assertNotIn(words, page)
        self.assertIn("Route: measured against the model", page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
