#!/usr/bin/python3
"""Goal: the last lines of a run name each test that failed, was flaky or was skipped, and what would run it.

Method: real ctest over a folder of tests that are shell commands; a GoogleTest program is one that writes such a report.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

OUTCOME = pathlib.Path(__file__).with_name("outcome.py")
GOOGLE = """<?xml version="1.0"?><testsuites tests="2" name="AllTests"><testsuite name="Unit">
<testcase name="Works" status="run" result="completed" time="0.1" classname="Unit" />
<testcase name="Skips" status="run" result="skipped" time="0" classname="Unit"><skipped message="/a/b.cc:7&#x0A;WHY" />
</testcase></testsuite></testsuites>"""


class Outcome(unittest.TestCase):
    def play(self, tests, *more, again=False, tell=()):
        """Runs tests, {name: shell command}; returns the exit code and the last lines, with their exit code."""
        with tempfile.TemporaryDirectory() as name:
            build = pathlib.Path(name) / "release"
            build.mkdir()
            listed = []
            for test, command in tests.items():
                (build / f"{test}.sh").write_text(command)
                listed.append(f'add_test({test} "/bin/sh" "{build}/{test}.sh")\n'
                              f"set_tests_properties({test} PROPERTIES SKIP_RETURN_CODE 77)\n")
            (build / "CTestTestfile.cmake").write_text("".join(listed) + "".join(more))
            ran = subprocess.run([sys.executable, OUTCOME, "run", *["--again"][:again], build, build / "durations", "--",
                                  "--test-dir", build], capture_output=True, text=True, check=False)
            told = subprocess.run([sys.executable, OUTCOME, "tell", *tell, build / "durations"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(told.stderr, "")
            return ran.returncode, told.stdout, told.returncode

    def test_a_skip_is_named_with_its_remedy(self):
        code, said, told = self.play({"good": "exit 0", "page": "echo 'SKIPPED: no browser; to run it: apt install one'\nexit 77"})
        self.assertEqual((code, told), (0, 0))
        self.assertIn("release: 1 passed, 0 failed, 0 flaky, 1 skipped\n", said)
        self.assertIn("skipped: page (release)\n    no browser\n    to run it: apt install one\n", said)

    def test_a_skip_without_a_remedy_is_an_error(self):
        for line in ("", "echo 'SKIPPED: no browser'", "echo 'SKIPPED: ; to run it: x'", "echo 'SKIPPED: x; to run it: '",
                     "echo 'skipped: no browser; to run it: apt install one'"):
            with self.subTest(line=line):
                code, said, told = self.play({"page": f"{line}\nexit 77"})
                self.assertEqual((code, told), (0, 1), said)
                self.assertIn("ERROR: a skip does not say what would run it: page (release)", said)

    def test_a_part_that_is_skipped_counts_too(self):
        code, said, told = self.play({"all": "echo 'SKIPPED: no fish; to run it: apt install fish'\necho 'OK (skipped=1)'"})
        self.assertEqual((code, told), (0, 0))
        self.assertIn("1 passed, 0 failed, 0 flaky, 0 skipped, 1 in part\n", said)
        self.assertIn("skipped: all (release)\n    no fish\n    to run it: apt install fish\n", said)
        _, said, told = self.play({"all": "echo 'Ran 3 tests'\necho 'OK (skipped=1)'"})
        self.assertEqual(told, 1, said)

    def test_a_skip_of_unittest_is_found(self):
        program = (f"import sys, unittest\nsys.path.append('{OUTCOME.parent / 'support'}')\nimport skip\n"
                   "class A(unittest.TestCase):\n  def test_a(self): pass\n"
                   "  def test_b(self): self.skipTest(skip.say('not root', 'sudo'))\nunittest.main()\n")
        code, said, told = self.play({"all": f'exec {sys.executable} -B -c "{program}"'})
        self.assertEqual((code, told), (0, 0), said)
        self.assertIn("skipped: all (release)\n    not root\n    to run it: sudo\n", said)

    def test_google_tests_are_named_one_by_one(self):
        for why, due in (("no unit; to run it: a processor with one", 0), ("no unit", 1), ("", 1)):
            with self.subTest(why=why):
                report = GOOGLE.replace("WHY", why)
                _, said, told = self.play({"unit_tests": f"cat >\"${{GTEST_OUTPUT#xml:}}unit_tests.xml\" <<'END'\n{report}\nEND"})
                self.assertEqual(told, due, said)
                self.assertIn("Unit.Skips (release)", said)
                self.assertNotIn("Unit.Works", said)

    def test_equal_reasons_are_one_line(self):
        skip = "echo 'SKIPPED: not root; to run it: sudo'\nexit 77"
        _, said, _ = self.play({"a": skip, "b": skip})
        self.assertIn("skipped: a (release), b (release)\n", said)

    def test_a_test_that_passes_the_second_time_is_flaky(self):
        flaky = "test -e seen && exit 0\ntouch seen\nexit 1"
        code, said, _ = self.play({"sure": "exit 0", "now_and_then": flaky}, again=True)
        self.assertEqual(code, 0, said)
        self.assertIn("1 passed, 0 failed, 1 flaky, 0 skipped", said)
        self.assertIn("FLAKY: now_and_then (release) failed, and passed when it ran again", said)
        code, said, _ = self.play({"sure": "exit 0", "now_and_then": flaky})  # without --again
        self.assertNotEqual(code, 0)
        self.assertIn("FAILED: now_and_then (release)", said)

    def test_a_test_that_fails_twice_failed(self):
        code, said, _ = self.play({"sure": "exit 0", "never": "exit 1"}, again=True)
        self.assertNotEqual(code, 0)
        self.assertIn("1 passed, 1 failed, 0 flaky, 0 skipped", said)
        self.assertTrue(said.endswith("FAILED: never (release)\n"), said)

    def test_many_failures_are_no_accident(self):
        code, said, _ = self.play({f"t{i}": f"test -e {i} && exit 0\ntouch {i}\nexit 1" for i in range(11)}, again=True)
        self.assertNotEqual(code, 0)
        self.assertIn("0 passed, 11 failed, 0 flaky", said)

    def test_a_test_that_could_not_start_failed(self):
        code, said, _ = self.play({"sure": "exit 0"}, 'add_test(gone "/no/such/program")\n')
        self.assertNotEqual(code, 0)
        self.assertIn("FAILED: gone (release)", said)

    def test_reports_what_was_left_out(self):
        _, said, told = self.play({"sure": "exit 0"}, tell=["--left-out", "preset asan; to run it: tests/run.sh --preset asan"])
        self.assertEqual(told, 0)
        self.assertIn("left out: preset asan\n    to run it: tests/run.sh --preset asan\n", said)


if __name__ == "__main__":
    unittest.main()
