"""10,000 simulated fleets, and whether the simulation finds each bug that a build plants on purpose (tests/sim).

    python3 tests/bench/simulated.py BUILD_DIR

Builds the planted bugs beside BUILD_DIR, which takes some minutes the first time.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS, PLANT_SEEDS = 10_000, 1000
PLANTS = ("epoch", "half-lease", "wall-clock", "ack-before-sync", "rename-before-sync", "duplicate", "hedge-loser", "earlier-reply",
          "forgets-chunk", "log-tail", "evicts-pinned", "drain-before-copy", "early-publish", "ended-lead")
TOTALS = re.compile(r"(?P<seeds>\d+) seeds, (?P<failed>\d+) failed; (?P<fleet_s>\d+) s of fleets in (?P<s>[\d.]+) s,"
                    r".* (?P<faults>\d+) faults and")


def run(program, *options):
    """Its output. It fails as a program if a seed fails, which is for the caller to judge."""
    done = subprocess.run([str(program), "--jobs", str(os.cpu_count()), *options], capture_output=True, text=True, check=False)
    return done.stdout


def build_planted(build):
    folder = build.parent / "planted"
    for command in (["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCKV_UNITY=ON",
                     "-DCKV_PLANTED=ON"], ["cmake", "--build", str(folder), "--target", "ckv_sim"]):
        subprocess.run(command, check=True, stdout=sys.stderr)
    return folder / "bin/ckv_sim"


def first_seed(program, plant):
    """The first seed that finds the bug, or None."""
    found = re.search(r"seed (\d+) FAILED", run(program, "--seeds", f"1..{PLANT_SEEDS}", "--first", "--no-shrink", "--plant", plant))
    return int(found.group(1)) if found else None


def figures(build):
    """{"seeds": {"seeds", "failed", "faults": of a seed, "speed": fleet time over wall time}, "plants": {"found", plant: seed}}"""
    build = build.resolve()
    said = run(build / "bin/ckv_sim", "--seeds", f"1..{SEEDS}", "--no-shrink")
    totals = {name: float(value) for name, value in TOTALS.search(said).groupdict().items()}
    print(said, file=sys.stderr)
    planted = build_planted(build)
    seeds = {plant: first_seed(planted, plant) for plant in PLANTS}
    print(f"simulated: planted bugs, by the first seed that finds each: {json.dumps(seeds)}", file=sys.stderr)
    return {"seeds": {**totals, "speed": totals["fleet_s"] / totals["s"]},
            "plants": {"found": sum(seed is not None for seed in seeds.values()), "planted": len(PLANTS)}}


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
