"""How a test in Python says that it, or a part of it, does not run here: the reason, and what would run it.

tests/outcome.py reads these lines and names them at the end of a run. A part that is left out says so
by `say`; a whole test ends with what `lacks` or `cannot` returns.
"""

import importlib.util
import os
import sys

CODE = 77  # of ctest's SKIP_RETURN_CODE
REMEDY = "; to run it: "  # between the reason and what would run it
PACKAGES = "deploy/install-packages.sh tests"  # has what deploy/packages.txt lists for them
NPM = "install npm (on Debian: apt-get install npm), with a network that reaches its registry"


def say(reason, remedy):
    """Prints the line and returns its text."""
    text = f"{reason}{REMEDY}{remedy}"
    # On a line of its own: unittest writes a dot a test, and ends the line after the last.
    print(f"\nSKIPPED: {text}", flush=True)
    return text


def lacks(reason, remedy=PACKAGES):
    """A program or a package is missing. The exit code: 1 under CI, which has them all."""
    say(reason, remedy)
    return 1 if os.environ.get("CI") else CODE


def cannot(reason, remedy):
    """This machine or this user cannot run the test. The exit code."""
    say(reason, remedy)
    return CODE


def needs(*modules):
    """Ends the test here if this Python lacks a module."""
    for module in modules:
        if not _is_there(module):
            sys.exit(lacks(f"{sys.executable} has no {module}"))


def _is_there(module):
    # Found and not imported: pip and setuptools each bring a distutils, and refuse the other's.
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
