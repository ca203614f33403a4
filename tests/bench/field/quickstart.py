"""How long the quick start takes in a clean root whose packages apt has fetched, on two processors."""

import math
import os
import re
import resource
import sys

from bar import NOT_HERE
from priority import usual_priority
from root import Cannot, CleanRoot

LIMIT_S = 3600
TOOK = re.compile(r"^== took ([0-9.]+) s: (.*)$", re.MULTILINE)
PHASE = re.compile(r"(\w+) ([0-9.]+) s")
SAVED = re.compile(r"^WHAT AUTO SAVED .*\ntime .*\nbytes moved .*\nmemory .*\n*\Z", re.MULTILINE)


def told(text):
    """The times that the quick start prints: {phase: seconds}; empty if its output does not end as expected."""
    took = TOOK.search(text)
    if not took or not SAVED.search(text):
        return {}
    return {"all": float(took[1]), **{name: float(seconds) for name, seconds in PHASE.findall(took[2])}}


@usual_priority()
def figures(_build):
    """{"quickstart": wall, processor, and each phase's seconds}; all infinite if it failed."""
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    try:
        with CleanRoot() as root:
            tree = root.clone()
            root.fetch_packages("build")
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            ran = root.run(f"cd {tree} && taskset -c {processors} deploy/quickstart.sh", LIMIT_S)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            text, tail = ran.text(), ran.tail()
    except Cannot as why:
        return {NOT_HERE: str(why)}
    phases = told(text)
    print(tail, file=sys.stderr)
    if ran.code != 0 or not phases:
        print(f"quickstart: exit {ran.code} after {ran.seconds:.0f} s; the end tells no times", file=sys.stderr)
        return {"quickstart": dict.fromkeys(("wall_s", "processor_s", "build_s", "untold_s"), math.inf)}
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Other work on the machine adds to the wall time. Half the processor time is what two idle processors need.
    return {"quickstart": {"wall_s": ran.seconds, "processor_s": processor_s / 2, "build_s": phases["build"],
                           "untold_s": ran.seconds - phases["all"]}}
