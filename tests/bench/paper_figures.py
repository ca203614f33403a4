"""How far `ckvctl plan prfaas` and `ckvctl simulate netkv` are from their papers' figures, and how long they take.

    python3 tests/bench/paper_figures.py BUILD_DIR
"""

import json
import pathlib
import subprocess
import sys
import time

SEEDS = 10
ABLATION_SEEDS = 60  # its last steps are some tenths of a percent
WORKLOADS = ("chatbot", "RAG", "long-context")
RUNS = 5  # of a plan, which takes a fraction of a second


def ctl(build, *arguments):
    """What ckvctl prints as JSON, and the seconds that it takes."""
    begin = time.monotonic()
    out = subprocess.run([str(build / "bin/ckvctl"), *map(str, arguments), "-o", "json"], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    return json.loads(out), time.monotonic() - begin


def prfaas(build):
    runs = [ctl(build, "plan", "prfaas", "--paper") for _ in range(RUNS)]
    figures = runs[0][0]["paper"]
    off = [100 * abs(one["here"] / one["source"] - 1) for one in figures if not one["reason"]]
    return {"s": sorted(seconds for _, seconds in runs)[RUNS // 2], "off": max(off), "reproduced": len(off),
            "not_from_its_numbers": len(figures) - len(off)}


def netkv(build):
    load, seconds = ctl(build, "simulate", "netkv", "--scenario", "load", "--seeds", SEEDS)
    rows = {row["policy"]: row for row in load["rows"] if row["workload"] == "RAG" and row["value"] == 100}
    times = {policy: row["ttft_ms_by_seed"] for policy, row in rows.items()}
    full = next(policy for policy in times if policy.endswith("Full"))
    ahead = {policy: sum(ours < theirs for ours, theirs in zip(times[full], times[policy])) for policy in ("RR", "CLA*")}
    ablation, _ = ctl(build, "simulate", "netkv", "--scenario", "ablation", "--seeds", ABLATION_SEEDS)
    steps = []
    for workload in WORKLOADS:
        means = [row["ttft_ms_mean"] for row in ablation["rows"] if row["workload"] == workload]
        steps += [after / before for before, after in zip(means, means[1:])]
    without = [one for one in load["paper"] + ablation["paper"]
               if abs(one["here"] / one["paper"] - 1) > .15 and not one["reason"]]
    run, took = ctl(build, "simulate", "netkv", "--scenario", "ablation", "--seeds", 1, "--requests", 12000)
    return {"ahead_of_RR": ahead["RR"], "ahead_of_CLA": ahead["CLA*"], "s": seconds,
            "worst_step": max(steps), "without_reason": len(without),
            "figures": len(load["paper"] + ablation["paper"]), "run_s": took / len(run["rows"])}


def figures(build):
    return {"prfaas": prfaas(build), "netkv": netkv(build)}


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
