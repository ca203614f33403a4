#!/usr/bin/python3
"""Draws the plots of a simulation into simulation.html, one page without external parts.

    python3 simulate_figures.py        in the folder of `ckvctl simulate ... --dir`, which writes and runs it

It reads simulation.json of its folder, and needs matplotlib (Debian: python3-matplotlib). It ends with exit code 3 if
there is none.
"""

import html
import io
import json
import pathlib
import sys

try:
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
except ImportError:
    sys.exit(3)

matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } .plots { display: flex; flex-wrap: wrap; gap: 1rem; } .plots svg { max-width: 100%; height: auto; }"""
LOG = ("length", "staleness", "scale")  # scenarios whose settings grow by factors


def rendered(figure):
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]


def in_order(rows, key):
    """The values of a key, each once, in their order."""
    return list(dict.fromkeys(row[key] for row in rows))


def ladder(rows, title):
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    axes.bar([row["policy"] for row in rows], [row["ttft_ms_mean"] for row in rows],
             yerr=[row["ttft_ms_stddev"] for row in rows], color="C0")
    axes.set(title=title, ylabel="mean TTFT, ms")
    return rendered(figure)


def grid(rows, title):
    """How much NetKV-Full takes off the TTFT of CLA*, over two settings."""
    ratios, shares = in_order(rows, "value"), in_order(rows, "second_value")
    ttft = {(row["value"], row["second_value"], row["policy"]): row["ttft_ms_mean"] for row in rows}
    cells = [[100 * (1 - ttft[a, b, "NetKV-Full"] / ttft[a, b, "CLA*"]) for b in shares] for a in ratios]
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    axes.imshow(cells, cmap="viridis", aspect="auto")
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", color="white")
    axes.set(title=title + ": TTFT less than CLA*, %", xlabel="background", ylabel="oversubscription across pods")
    axes.set_xticks(range(len(shares)), [f"{100 * share:.0f} %" for share in shares])
    axes.set_yticks(range(len(ratios)), [f"{ratio:.0f}:1" for ratio in ratios])
    return rendered(figure)


def lines(rows, title, log):
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    for policy in in_order(rows, "policy"):
        drawn = [row for row in rows if row["policy"] == policy]
        axes.errorbar([row["value"] for row in drawn], [row["ttft_ms_mean"] for row in drawn],
                      yerr=[row["ttft_ms_stddev"] for row in drawn], marker="o", capsize=2, label=policy)
    if log:
        axes.set_xscale("log")
    axes.set(title=title, xlabel=rows[0]["setting"].split()[-1], ylabel="mean TTFT, ms", ylim=(0, None))
    axes.grid(alpha=.3)
    axes.legend(fontsize="small")
    return rendered(figure)


def plots(rows):
    for scenario in in_order(rows, "scenario"):
        of_scenario = [row for row in rows if row["scenario"] == scenario]
        for workload in in_order(of_scenario, "workload"):
            drawn = [row for row in of_scenario if row["workload"] == workload]
            title = f"{scenario}, {workload}"
            if scenario == "ablation":
                yield ladder(drawn, title)
            elif scenario == "topology":
                yield grid(drawn, title)
            elif scenario != "tune":
                yield lines(drawn, title, scenario in LOG)


def fleet_lines(rows, title, of, label, log=False):
    """A line for each policy over the loads of one size."""
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    for policy in in_order(rows, "policy"):
        drawn = [row for row in rows if row["policy"] == policy]
        axes.plot([100 * row["load"] for row in drawn], [of(row) for row in drawn], marker="o", label=policy)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.set(title=title, xlabel="load, %", ylabel=label)
    axes.grid(alpha=.3)
    axes.legend(fontsize="small")
    return rendered(figure)


def fleet_ratio(comparisons):
    """Auto over the best other policy, a line for each size."""
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    for nodes in in_order(comparisons, "nodes"):
        drawn = [one for one in comparisons if one["nodes"] == nodes]
        axes.plot([100 * one["load"] for one in drawn], [one["ratio"] for one in drawn], marker="o", label=f"{nodes} nodes")
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(title="auto over the best other policy", xlabel="load, %", ylabel="mean time of a request, ratio", ylim=(0, None))
    axes.grid(alpha=.3)
    axes.legend(fontsize="small")
    return rendered(figure)


def fleet_plots(simulation):
    if simulation["comparisons"]:
        yield fleet_ratio(simulation["comparisons"])
    for nodes in in_order(simulation["rows"], "nodes"):
        rows = [row for row in simulation["rows"] if row["nodes"] == nodes]
        title = f"{nodes} nodes"
        yield fleet_lines(rows, title, lambda row: row["latency_ms"]["mean"], "mean time of a request, ms", log=True)
        yield fleet_lines(rows, title, lambda row: row["step_ms"]["mean"], "mean time of a step, ms")
        yield fleet_lines(rows, title, lambda row: row["first_token_ms"]["mean"], "mean time to the first token, ms", log=True)
        yield fleet_lines(rows, title, lambda row: (row["routed_bytes"] + row["fetched_bytes"]) / 1e9, "bytes moved, GB")
        yield fleet_lines(rows, title, lambda row: 100 * row["kernel_share"], "use of kernels, %")


def page(simulation):
    drawn = fleet_plots(simulation) if simulation.get("kind") == "fleet" else plots(simulation["rows"])
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in simulation["assumptions"])
    return ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
            f'content="width=device-width">\n<title>ckvctl simulate</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
            f'<h1>Simulation</h1>\n<div class="plots">\n{"".join(drawn)}</div>\n'
            f"<h2>Assumed</h2>\n<ul>{notes}</ul>\n</body>\n</html>\n")


if __name__ == "__main__":
    FOLDER = pathlib.Path(__file__).resolve().parent
    NEW = FOLDER / "simulation.html.new"  # a page is whole or not there
    NEW.write_text(page(json.loads((FOLDER / "simulation.json").read_text(encoding="utf-8"))), encoding="utf-8")
    NEW.replace(FOLDER / "simulation.html")
