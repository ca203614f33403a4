#!/usr/bin/python3
"""Prints how long the slowest tests of a run took, and which slow ones lack the label slow.

    python3 tests/durations.py BUILD

BUILD/durations has what a run left there (tests/outcome.py). Exit 0 always: a busy machine is no fault of a test.
"""

import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

sys.dont_write_bytecode = True  # the source tree stays as it is
import outcome  # noqa: E402

SHOWN = 10
SLOW_S = 10  # from here on a test needs the label slow


def entries(build):
    """(name, seconds) of each ctest entry that ran."""
    report = xml.etree.ElementTree.parse(build / "durations/ctest.xml").getroot()
    return [(case.get("name"), float(case.get("time"))) for case in report.iter("testcase")
            if case.get("status") == "run"]


def tests(build):
    """(program, test, seconds) of each GoogleTest that ran."""
    for program, name, seconds, _ in outcome.google_tests(build / "durations"):
        yield program, name, seconds


def slow_labels(build):
    """Names of the ctest entries with the label slow."""
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True,
                            capture_output=True, text=True).stdout
    return {test["name"] for test in json.loads(listed)["tests"]
            for prop in test.get("properties", [])
            if prop["name"] == "LABELS" and "slow" in prop["value"]}


def main():
    build = pathlib.Path(sys.argv[1])
    found = [(seconds, name, program) for program, name, seconds in tests(build)]
    programs = {program for _, _, program in found}
    # A program without GoogleTest (a script, a corpus of a fuzz target) is one test.
    found += [(seconds, name, name) for name, seconds in entries(build) if name not in programs]
    found.sort(reverse=True)
    print(f"the {min(SHOWN, len(found))} slowest of {len(found)} tests:")
    for seconds, name, program in found[:SHOWN]:
        print(f"  {seconds:7.1f} s  {name}" + (f"  ({program})" if program != name else ""))
    labelled = slow_labels(build)
    for seconds, name, program in found:
        if seconds >= SLOW_S and program not in labelled:
            print(f"  {name} took {seconds:.1f} s without the label slow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
