"""Times routed calls over 1, 3 and 6 holders on this machine's processors: agents_bench.cc against real daemons.

    python3 tests/bench/wait_fleets.py BUILD_DIR [SPINNING_BUILD_DIR]

For each number of holders there are two fleets. In one, the daemons and the requester wait with the default settings.
In the other they never spin (spin_us 0). A call routes 16 query rows over a chunk of 2,048 rows to every holder. The
fleets take turns; the idle one sleeps. Given a second folder, its ckvd and agents_bench make a third fleet, to compare
two builds.
"""

import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from fleet import daemon

COUNTS = (1, 3, 6)
ROUNDS = 5
CALLS = 1500
CAPACITY = "1GiB"  # all 14 chunks of 64 MB on one holder
DEFAULT_SPIN_US = 50


@contextlib.contextmanager
def fleet(build, holders, spin_us):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        spin = f"--spin-us={spin_us}"
        directory = stack.enter_context(daemon(build, folder, [], "--role=directory", "--listen=127.0.0.1:0"))
        for i in range(holders):
            stack.enter_context(
                daemon(build, folder, [], "--role=holder", f"--name=h{i}", "--listen=127.0.0.1:0",
                       f"--directory={directory}", f"--store-capacity={CAPACITY}", spin))
        subprocess.run([str(build / "bin" / "agents_bench"), "load", directory], check=True)
        yield directory


def call_us(build, directory, spin_us):
    command = [str(build / "bin" / "agents_bench"), "calls", directory, "shm", str(spin_us), str(CALLS)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def of_count(holders, arms):
    """{arm: [microseconds of a call, one per round]}"""
    us = {arm: [] for arm in arms}
    with contextlib.ExitStack() as stack:
        directories = {arm: stack.enter_context(fleet(build, holders, spin)) for arm, (build, spin) in arms.items()}
        for turn in range(ROUNDS):
            order = list(arms)[turn % len(arms):] + list(arms)[:turn % len(arms)]
            for arm in order:
                build, spin = arms[arm]
                us[arm].append(call_us(build, directories[arm], spin))
    return us


def figures(build, other=None):
    """{holders: {figure: value}}: the median time of a call, and the median ratio of the two fleets within a round."""
    arms = {"adaptive": (build, DEFAULT_SPIN_US), "sleeping": (build, 0)}
    if other is not None:
        arms["other"] = (other, DEFAULT_SPIN_US)
    said = {}
    for holders in COUNTS:
        us = of_count(holders, arms)
        said[f"{holders}"] = {**{f"{arm}_us": statistics.median(each) for arm, each in us.items()},
                              "of_sleeping": statistics.median(a / b for a, b in zip(us["adaptive"], us["sleeping"]))}
    return said


if __name__ == "__main__":
    print(json.dumps(figures(*map(pathlib.Path, sys.argv[1:])), indent=2))
