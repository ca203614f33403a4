"""The bars of the set "field": what users of systems like this one reported, tried on ckv.

Each row's figures come from a script of tests/bench/field: `figures(build)` returns {name: {figure: value}}.
"""

import pathlib
import sys

from bar import Bar, counter

sys.path.append(str(pathlib.Path(__file__).with_name("field")))
import clean_root  # noqa: E402

# name of a script -> its figures(build); bars.py runs each once.
SCRIPTS = {"clean_root": clean_root.figures}

BARS = [
    Bar("clean root, then the two commands: which of them fail", "clean_root", counter("commands", "bad_exits"), "commands",
        at_most=0, base=counter("commands", "quickstart_s"), base_unit="s for the first"),
    Bar("the same, tests that fail", "clean_root", counter("commands", "failed"), "tests", at_most=0,
        base=counter("commands", "passed"), base_unit="passed"),
    Bar("the same, skipped tests without a remedy", "clean_root", counter("commands", "unnamed"), "tests", at_most=0,
        base=counter("commands", "skipped"), base_unit="skipped"),
]
