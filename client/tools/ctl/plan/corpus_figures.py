#!/usr/bin/python3
"""Draws the plots of a plan of a corpus into plan.html, one page without external parts.

    python3 corpus_figures.py        in the folder of `ckvctl plan corpus --dir`, which writes and runs it

It reads plan.json of its folder, and needs matplotlib (Debian: python3-matplotlib). It ends with exit code 3 if there is
none.
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
h1 { font-size: 1.3rem; white-space: pre-line; } .plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots svg { max-width: 100%; height: auto; }"""
TERMS = (("probe_us", "probe"), ("transfer_us", "transfer"), ("compute_us", "kernel"), ("merge_us", "merge"), ("wait_us", "wait"))


def svg(figure):
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]


def over_holders(plan, columns, label, goals=()):
    """One line a machine and column; infinite times are left out."""
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    for number, machine in enumerate(plan["machines"]):
        rows = [row for row in plan["holders"] if row["machine"] == machine["machine"]]
        for column, style, name in columns:
            points = [(row["holders"], row[column]) for row in rows if row[column] is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], style, color=f"C{number}",
                      label=f"{machine['machine']} {name}".strip())
        if machine["meets_goal"]:
            axes.axvline(machine["holders"], color=f"C{number}", linestyle=":", alpha=.6)
    for value in goals:
        axes.axhline(value, color="k", linewidth=.8)
    axes.set(xlabel="holders", ylabel=label, xscale="log")
    axes.grid(alpha=.3)
    axes.legend(fontsize="small")
    return figure, axes


def terms(plan):
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    left = [0.0] * len(plan["machines"])
    names = [f"{row['machine']} x {row['holders']}" for row in plan["machines"]]
    for column, name in TERMS:
        widths = [row[column] or 0 for row in plan["machines"]]
        axes.barh(names, widths, left=left, label=name)
        left = [a + b for a, b in zip(left, widths)]
    axes.set(xlabel="us a layer, mean", title="Terms")
    axes.legend(fontsize="small")
    return svg(figure)


def page(plan):
    per = plan["goal"]["per"]
    times, axes = over_holders(plan, ((f"{per}_us_p50", "-", "p50"), (f"{per}_us_p99", "--", "p99")), f"us a {per}",
                               [plan["goal"][name] for name in ("p50_us", "p99_us") if plan["goal"][name] is not None])
    axes.set(title="Added time; goals are black", yscale="log")
    use, axes = over_holders(plan, (("kernel_utilisation", "-", "kernel"), ("holder_link_utilisation", "--", "link")), "utilisation",
                             [plan["goal"]["utilisation_max"]])
    axes.set(title="Use of holders", ylim=(0, 1.2))
    price, axes = over_holders(plan, (("price_per_hour", "-", ""),), "price an hour")
    axes.set(title="Price")
    plots = svg(times) + svg(use) + svg(price) + terms(plan)
    return ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
            f'content="width=device-width">\n<title>ckvctl plan corpus</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
            f'<h1>{html.escape(plan["answer"])}</h1>\n<div class="plots">\n{plots}</div>\n</body>\n</html>\n')


if __name__ == "__main__":
    FOLDER = pathlib.Path(__file__).resolve().parent
    NEW = FOLDER / "plan.html.new"  # a page is whole or not there
    NEW.write_text(page(json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))), encoding="utf-8")
    NEW.replace(FOLDER / "plan.html")
