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


def counter(benchmark, name):
    """The median over repetitions of a counter of one benchmark."""
    return lambda run: run[benchmark][name]


class Bar:
    """`value` and `base` read the figures of one binary's run; the limit is an upper one or a lower."""

    def __init__(self, measure, binary, value, unit, at_most=None, at_least=None, base=None):
        self.measure, self.binary, self.value, self.unit = measure, binary, value, unit
        self.at_most, self.at_least, self.base = at_most, at_least, base

    def limit(self):
        return f"<= {self.at_most} {self.unit}" if self.at_most is not None else (
            f">= {self.at_least} {self.unit}")

    def holds(self, value):
        return value <= self.at_most if self.at_most is not None else value >= self.at_least


def ratio(measure, benchmark, at_least, unit):
    """A bar over a ratio that attention_bench took sample by sample against its floor."""
    return Bar(measure, "attention_bench", counter(benchmark, "ratio"), unit, at_least=at_least)


SETS = {
    # The kernel's own time is measured in the same run, call by call beside the routed one, with the
    # daemons' default spin_us: calls like these come again and again, so both sides spin for them.
    "data-path": [
        Bar("routed decode adds over the kernel, shm, 16 rows", "requester_bench",
            counter("BM_RoutedDecode/rows:16/spin_us:50", "added_us"), "us", at_most=60,
            base=counter("BM_RoutedDecode/rows:16/spin_us:50", "kernel_us")),
    ],
    # One thread unless it says two; DeepSeek rows; bf16 unless it says fp8.
    "kernels": [
        *(ratio(f"dense, {q} query rows over {rows}", f"BM_Dense/q:{q}/rows:{rows}", bar, "of FMA peak")
          for q, rows, bar in ((128, 2048, 0.78), (1024, 2048, 0.78), (128, 32768, 0.78),
                               (64, 2048, 0.76), (64, 32768, 0.76), (16, 2048, 0.58), (16, 32768, 0.58))),
        ratio("dense, 1 query row over 32768", "BM_MemoryBound/q:1/dtype:1", 0.80, "of DRAM read"),
        *(ratio(f"against oneDNN, {q} query rows over 2048", f"BM_AgainstOneDnn/q:{q}", bar, "x oneDNN's GEMMs and softmax")
          for q, bar in ((128, 1.10), (64, 1.10), (16, 1.5), (1, 2.0))),
        *(ratio(f"selected 2048 of 131072, {q} query rows", f"BM_Selected/q:{q}/k:2048/rows:131072", bar,
                "x dense at equal k") for q, bar in ((128, 0.90), (16, 0.80))),
        *(ratio(f"selected 512 of 131072, {q} query rows", f"BM_SelectedStore/q:{q}", 0.85,
                "x the same of 2048") for q in (128, 16)),
        *(ratio(f"fp8 rows, {q} query rows over {rows}", f"BM_Fp8/q:{q}/rows:{rows}", 1.0, "x bf16 rows")
          for q, rows in ((128, 2048), (64, 2048), (16, 2048))),
        ratio("fp8 rows, 1 query row over 32768", "BM_Fp8MemoryBound", 1.0, "x bf16 rows"),
        *(ratio(f"two threads, {q} query rows over {rows}", f"BM_TwoThreads/q:{q}/rows:{rows}", 1.85,
                "x one") for q, rows in ((1, 32768), (16, 2048), (128, 2048))),
        *(ratio(f"AVX2 target, {q} query rows over 2048", f"BM_Avx2/q:{q}", 0.70, "of AVX2 FMA peak")
          for q in (128, 64)),
        *(ratio(f"merge of {parts}, 1024 query rows", f"BM_Merge/q:1024/parts:{parts}", 0.8, "of copy")
          for parts in (8, 2)),
        *(ratio(f"rotation in place, {name}", f"BM_RotateInPlace/style:{style}", 0.8,
                "of touching the bands") for style, name in ((1, "interleaved"), (2, "half-split"))),
        *(ratio(f"rotation of copied rows, {name}", f"BM_RotateCopy/style:{style}", 0.8, "of copy")
          for style, name in ((1, "interleaved"), (2, "half-split"))),
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
        digits = 1 if bar.unit == "us" else 2
        value = round(value, digits)
        rows.append([bar.measure, f"{value:.{digits}f} {bar.unit}",
                     f"{base:.{digits}f} {bar.unit}" if base is not None else "-",
                     bar.limit(), "ok" if bar.holds(value) else "short"])
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
