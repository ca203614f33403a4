#!/usr/bin/python3
"""Runs a set of benchmarks, holds their figures against the bars, prints one row a bar.

    python3 tests/bench/bars.py SET BUILD_DIR [BINARY]...

BINARY: only the rows of this binary, or of this script of tests/bench.
A row is: measure, measured, floor or base of the same run, bar, ok or short; - where there is no bar. Where the machine
lacks what a row is about, the row says why. So does a row whose measurement failed, and it is short.
Exit 0 only when every bar holds. Each run is appended to tests/bench/history.csv under its commit, so a claim of speed has
both its rows there.
"""

import csv
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

from bar import Failed
from bar_sets import NOT_HERE, SCRIPTS, SETS, NotHere, digits

# The median of so many repetitions is what counts: two shared cores are noisy.
REPETITIONS = {"attention_bench": 5, "matrix_bench": 3, "dot_bench": 3, "prefill_bench": 1, "requester_bench": 5, "data_path_bench": 3, "decision_bench": 5,
               "curve_bench": 2,
               "splice_bench": 3, "contexts_bench": 3, "store_bench": 5, "store_disk_bench": 2, "store_stripe_bench": 3, "store_plan_bench": 3,
               "prefetch_rule_bench": 2, "local_rows_bench": 3, "prompt_bench": 5, "c_call_bench": 5, "rank_bench": 5, "score_bench": 5, "select_bench": 1,
               "directory_bench": 1}  # a second one in the process would find memory that the first one left
# What a set runs of a binary, where that is not all of it.
FILTERS = {"requester_bench": "BM_RoutedDecode/rows:16/spin_us:50/"}
# What google-benchmark appends to a name for how it was run.
OPTIONS = re.compile(r"/(min_time|repeats|iterations|manual_time|real_time)[^/]*")
HISTORY = pathlib.Path(__file__).with_name("history.csv")


def run_binary(path):
    """{benchmark: {figure: median}} of a google-benchmark binary, and why it has nothing to measure, if so."""
    # Not by stdout, where a holder that a benchmark starts logs too.
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        subprocess.run(
            [path, f"--benchmark_out={out.name}", "--benchmark_out_format=json",
             f"--benchmark_repetitions={REPETITIONS[path.name]}",
             "--benchmark_report_aggregates_only=true", "--benchmark_enable_random_interleaving=true",
             f"--benchmark_filter={FILTERS.get(path.name, '.')}"],
            check=True, stdout=subprocess.DEVNULL)
        said = json.load(out)
    figures = {}
    figures.update((key, why) for key, why in said["context"].items() if key.startswith(NOT_HERE))
    for row in said["benchmarks"]:
        # One repetition has no median: it is reported itself.
        if row["run_type"] == "iteration" or row.get("aggregate_name") == "median":
            name = OPTIONS.sub("", row["run_name"])
            figures[name] = {k: v for k, v in row.items() if isinstance(v, (int, float))}
    return figures


def figures_of(binary, build, name):
    """The figures of a binary or script, which also are in BUILD/bench/SET/BINARY.json as soon as they are known.

    If it fails, each of its rows says why, and those of the others still count.
    """
    print(f"== {binary}", flush=True)
    try:
        figures = SCRIPTS[binary](build) if binary in SCRIPTS else run_binary(build / "bin" / binary)
    except (Exception, SystemExit) as error:  # a mistake in one script must not cost an hour of others
        traceback.print_exc()
        return Failed(f"{type(error).__name__}: {error}")
    path = build / "bench" / name / f"{binary}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2, default=str) + "\n")
    return figures


def commit(root):
    if not shutil.which("git"):
        return "unknown"
    described = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"],
                               capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in SETS:
        print(f"usage: bars.py {'|'.join(SETS)} BUILD_DIR [BINARY]...", file=sys.stderr)
        return 2
    name, build = sys.argv[1], pathlib.Path(sys.argv[2])
    binaries = sorted({bar.binary for bar in SETS[name]})
    if len(sys.argv) > 3:
        unknown = set(sys.argv[3:]) - set(binaries)
        if unknown:
            print(f"bars.py: {name} runs no {', '.join(sorted(unknown))}; it runs {', '.join(binaries)}", file=sys.stderr)
            return 2
        binaries = sys.argv[3:]
    runs = {binary: figures_of(binary, build, name) for binary in binaries}
    rows = []
    for bar in (bar for bar in SETS[name] if bar.binary in binaries):
        try:
            if isinstance(runs[bar.binary], Failed):
                raise runs[bar.binary]
            value = bar.value(runs[bar.binary])
        except NotHere as why:
            rows.append([bar.measure, f"not here: {why}", "-", bar.limit(), "-"])
            continue
        except Failed as why:
            rows.append([bar.measure, f"failed: {why}", "-", bar.limit(), "short"])
            continue
        base = bar.base(runs[bar.binary]) if bar.base else None
        value = round(value, digits(bar.unit))
        rows.append([bar.measure, f"{value:.{digits(bar.unit)}f} {bar.unit}",
                     f"{base:.{digits(bar.base_unit)}f} {bar.base_unit}" if base is not None else "-",
                     bar.limit(), bar.verdict(value)])
    header = ["measure", "measured", "base of the same run", "bar", "verdict"]
    widths = [max(len(row[i]) for row in rows + [header]) for i in range(len(header))]
    for row in [header] + rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    # Before the file changes, which would make the tree dirty.
    at, fresh = commit(HISTORY.parent), not HISTORY.exists()
    with HISTORY.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(["commit", "date", "set"] + header)
        for row in rows:
            writer.writerow([at, time.strftime("%Y-%m-%d"), name] + row)
    return 1 if any(row[-1] == "short" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
