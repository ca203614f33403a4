#!/usr/bin/env python3
"""Runs a set of benchmarks, holds their figures against the bars, prints one row a bar.

    python3 tests/bench/bars.py SET BUILD_DIR

A row is: measure, measured, floor or base of the same run, bar, ok or short. Exit 0 only when every
bar holds. Each run is appended to tests/bench/history.csv under its commit, so a claim of speed has
both its rows there.
"""

import csv
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

REPETITIONS = 5  # the median of so many is what counts: two shared cores are noisy
# What google-benchmark appends to a name for how it was run.
OPTIONS = re.compile(r"/(min_time|repeats|iterations|manual_time|real_time).*")
HISTORY = pathlib.Path(__file__).with_name("history.csv")


class Bar:
    """`value` and `base` read the figures of one binary's run; the bar is an upper limit."""

    def __init__(self, measure, binary, value, at_most, unit, base=None):
        self.measure, self.binary, self.value = measure, binary, value
        self.at_most, self.unit, self.base = at_most, unit, base


def counter(benchmark, name):
    """The median over repetitions of a counter of one benchmark."""
    return lambda run: run[benchmark][name]


SETS = {
    # The kernel's own time is measured in the same run, call by call beside the routed one, with the
    # daemons' default of sleeping after 50 us: both wake-ups are in the figure.
    "data-path": [
        Bar("routed decode adds over the kernel, shm, 16 rows", "requester_bench",
            counter("BM_RoutedDecode/rows:16/spin_us:50", "added_us"), 60, "us",
            counter("BM_RoutedDecode/rows:16/spin_us:50", "kernel_us")),
    ],
}


def run_binary(path):
    """{benchmark: {figure: median}} of a google-benchmark binary."""
    out = subprocess.run(
        [path, "--benchmark_format=json", f"--benchmark_repetitions={REPETITIONS}",
         "--benchmark_report_aggregates_only=true", "--benchmark_enable_random_interleaving=true"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    figures = {}
    for row in json.loads(out)["benchmarks"]:
        if row.get("aggregate_name") == "median":
            name = OPTIONS.sub("", row["run_name"])
            figures[name] = {k: v for k, v in row.items() if isinstance(v, (int, float))}
    return figures


def commit(root):
    if not shutil.which("git"):
        return "unknown"
    described = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"],
                               capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SETS:
        print(f"usage: bars.py {'|'.join(SETS)} BUILD_DIR", file=sys.stderr)
        return 2
    name, build = sys.argv[1], pathlib.Path(sys.argv[2])
    runs = {b: run_binary(build / "bin" / b) for b in {bar.binary for bar in SETS[name]}}
    rows = []
    for bar in SETS[name]:
        value = bar.value(runs[bar.binary])
        base = bar.base(runs[bar.binary]) if bar.base else None
        rows.append([bar.measure, f"{value:.1f} {bar.unit}",
                     f"{base:.1f} {bar.unit}" if base is not None else "-",
                     f"<= {bar.at_most} {bar.unit}", "ok" if value <= bar.at_most else "short"])
    header = ["measure", "measured", "base of the same run", "bar", "verdict"]
    widths = [max(len(row[i]) for row in rows + [header]) for i in range(len(header))]
    for row in [header] + rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    fresh = not HISTORY.exists()
    with HISTORY.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(["commit", "date", "set"] + header)
        for row in rows:
            writer.writerow([commit(HISTORY.parent), time.strftime("%Y-%m-%d"), name] + row)
    return 0 if all(row[-1] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
