#!/usr/bin/python3
"""Runs ctest, and reports at the end which tests failed, were flaky or skipped, and what would run the skipped ones.

    tests/outcome.py run [--again] BUILD FOLDER -- ARGUMENT...
    tests/outcome.py tell [--left-out "WHAT; to run it: HOW"]... [FOLDER]...

run:  runs ctest with these arguments. FOLDER gets its report (ctest.xml), and a report of each GoogleTest program.
      With --again, a failed test runs once more. If it passes then, it is flaky, and the run did not fail.
      Exits as ctest does.
tell: prints the last lines of a run: the results in these folders, and parts left out on purpose. A skip must name
      its reason and what would run it: "REASON; to run it: REMEDY" in GTEST_SKIP, or a line "SKIPPED: ..." of another
      program. Exits with 1 if one does not.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

AGAIN_MAX = 10  # if more fail, they are not flaky
REMEDY = "; to run it: "
SKIPPED = re.compile(r"^\s*(?:\d+: )?SKIPPED: (.*)$", re.M)
UNITTEST = re.compile(r"^(?:OK|FAILED) \(.*?skipped=(\d+)", re.M)  # the count of Python's unittest
OUTPUT_MAX = 1 << 20  # of a test, in the report; ctest keeps 1 KB otherwise


def entries(report):
    """(name, outcome, output) of each ctest entry: passed, failed or skipped."""
    if not report.exists():
        return
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        outcome = {"run": "passed", "fail": "failed"}.get(case.get("status"), "failed")
        # A test not run for another reason, for example a missing program or fixture, is a failure.
        if skipped is not None and skipped.get("message", "").startswith("SKIP_"):
            outcome = "skipped"
        yield case.get("name"), outcome, case.findtext("system-out") or ""


def google_tests(folder):
    """(program, name, seconds, why it was skipped or None) of each GoogleTest that ran."""
    for path in sorted(folder.glob("*.xml")):
        root = xml.etree.ElementTree.parse(path).getroot()
        if root.tag != "testsuites" or path.name in ("ctest.xml", "again.xml"):
            continue
        for case in root.iter("testcase"):
            if case.get("status") != "run":
                continue
            skipped = case.find("skipped")
            # The first line is the location of the skip.
            why = None if skipped is None else " ".join((skipped.get("message") or "").split("\n")[1:]).strip()
            yield path.stem, f"{case.get('classname')}.{case.get('name')}", float(case.get("time")), why


class Outcome:
    """The results in the report of one run."""

    def __init__(self, folder):
        self.name = folder.parent.name  # of the preset
        first = list(entries(folder / "ctest.xml"))
        again = {name: outcome for name, outcome, _ in entries(folder / "again.xml")}
        self.passed = [name for name, outcome, _ in first if outcome == "passed"]
        failed = [name for name, outcome, _ in first if outcome == "failed"]
        self.flaky = [name for name in failed if again.get(name) == "passed"]
        self.failed = [name for name in failed if name not in self.flaky]
        self.skips = []  # (name, text)
        self.partly = 0
        for name, outcome, output in first:
            said = SKIPPED.findall(output)
            missing = max(int(outcome == "skipped"), *map(int, UNITTEST.findall(output)), 0) - len(said)
            self.skips += [(name, text) for text in said + [""] * missing]
            self.partly += outcome != "skipped" and bool(said or missing > 0)
        self.skipped = [name for name, outcome, _ in first if outcome == "skipped"]
        for _, name, _, why in google_tests(folder):
            if why is not None:
                self.skips.append((name, why))


def run(arguments):
    folder = arguments.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sizes = [f"--test-output-size-{kind}={OUTPUT_MAX}" for kind in ("passed", "failed")]
    sizes = [part for size in sizes for part in size.split("=")]
    command = ["ctest", *arguments.ctest, *sizes]
    code = subprocess.run([*command, "--output-junit", folder / "ctest.xml"], check=False,
                          env={**os.environ, "GTEST_OUTPUT": f"xml:{folder}/"}).returncode
    failed = [name for name, outcome, _ in entries(folder / "ctest.xml") if outcome == "failed"]
    if code == 0 or not arguments.again or not 0 < len(failed) <= AGAIN_MAX:
        return code
    print(f"== once more, one at a time: {', '.join(failed)}", file=sys.stderr, flush=True)
    names = "|".join(re.escape(name) for name in failed)
    return subprocess.run(["ctest", "--test-dir", arguments.build, "-R", f"^({names})$", "-j", "1", "--output-on-failure",
                           *sizes, "--output-junit", folder / "again.xml"], check=False).returncode


def tell(arguments):
    outcomes = [Outcome(folder) for folder in arguments.folders]
    groups, bad = {}, []  # (reason, remedy) -> names
    for outcome in outcomes:
        print(f"{outcome.name}: {len(outcome.passed)} passed, {len(outcome.failed)} failed, {len(outcome.flaky)} flaky, "
              f"{len(outcome.skipped)} skipped" + (f", {outcome.partly} in part" if outcome.partly else ""))
        for name, text in outcome.skips:
            reason, found, remedy = text.partition(REMEDY)
            if found and reason and remedy:
                groups.setdefault((reason, remedy), []).append(f"{name} ({outcome.name})")
            else:
                bad.append(f"{name} ({outcome.name}): {text or 'no word of why'}")
    for (reason, remedy), names in groups.items():
        print(f"skipped: {', '.join(names)}\n    {reason}\n    to run it: {remedy}")
    for text in arguments.left_out:
        what, _, remedy = text.partition(REMEDY)
        print(f"left out: {what}\n    to run it: {remedy}")
    for text in bad:
        print(f"ERROR: a skip does not say what would run it: {text}")
    for outcome in outcomes:
        for name in outcome.flaky:
            print(f"FLAKY: {name} ({outcome.name}) failed, and passed when it ran again: mend it before anything else")
        for name in outcome.failed:
            print(f"FAILED: {name} ({outcome.name})")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("build", type=pathlib.Path)
    one.add_argument("folder", type=pathlib.Path)
    one.add_argument("--again", action="store_true")
    one.add_argument("ctest", nargs="*")
    one.set_defaults(call=run)
    last = commands.add_parser("tell")
    last.add_argument("--left-out", action="append", default=[])
    last.add_argument("folders", type=pathlib.Path, nargs="*")
    last.set_defaults(call=tell)
    arguments = parser.parse_args()
    return arguments.call(arguments)


if __name__ == "__main__":
    sys.exit(main())
