#!/usr/bin/python3
"""Draws the plots of a plan into plan.html, one page without external parts.

    python3 plan_figures.py        in the folder of `ckvctl plan prfaas --dir`, which writes and runs it

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
h1 { font-size: 1.5rem; } .plots { display: flex; flex-wrap: wrap; gap: 1rem; } .plots svg { max-width: 100%; height: auto; }"""
LINES = (("requests_per_s", "all", "k", 2), ("prfaas", "PrfaaS / p", "C0", 1), ("pd_prefill", "PD prefill / (1 - p)", "C1", 1),
         ("pd_decode", "PD decode", "C2", 1))


def rate(point, name):
    """What a stage lets pass of all requests, or None if it gets none of them."""
    if name == "requests_per_s":
        return point[name]
    share = {"prfaas": point["share_offloaded"], "pd_prefill": 1 - point["share_offloaded"], "pd_decode": 1}[name]
    return point[name + "_requests_per_s"] / share if share > 1e-6 else None


def plot(points, x, title, label, best, log):
    figure, axes = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    top = 1.6 * max(point["requests_per_s"] for point in points)
    for name, text, color, width in LINES:
        drawn = [(point[x], rate(point, name)) for point in points]
        drawn = [(at, value) for at, value in drawn if value is not None]
        axes.plot([at for at, _ in drawn], [value for _, value in drawn], color=color, linewidth=width, label=text,
                  marker="" if log else "o")
    axes.axvline(best, color="grey", linestyle=":", label=f"best: {best:.0f}")
    axes.set(title=title, xlabel=label, ylabel="requests/s", ylim=(0, top))
    if log:
        axes.set_xscale("log")
    axes.grid(alpha=.3)
    axes.legend(fontsize="small")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]


def page(plan):
    best = plan["best"]
    answer = (f"Offload inputs longer than {best['threshold_tokens']:.0f} tokens, and give {best['pd_prefill_instances']} PD "
              f"instances to prefill and {best['pd_decode_instances']} to decode: {best['requests_per_s']:.2f} requests/s.")
    plots = plot(plan["by_threshold"], "threshold_tokens", "Threshold, at the best split", "tokens",
                 best["threshold_tokens"], log=True)
    if plan["by_split"]:
        plots += plot(plan["by_split"], "pd_prefill_instances", "Split, at the best threshold", "PD instances for prefill",
                      best["pd_prefill_instances"], log=False)
    return ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
            f'content="width=device-width">\n<title>ckvctl plan prfaas</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
            f"<h1>{html.escape(answer)}</h1>\n<p>Limited by {html.escape(best['limit'])}.</p>\n"
            f'<div class="plots">\n{plots}</div>\n</body>\n</html>\n')


if __name__ == "__main__":
    FOLDER = pathlib.Path(__file__).resolve().parent
    NEW = FOLDER / "plan.html.new"  # a page is whole or not there
    NEW.write_text(page(json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))), encoding="utf-8")
    NEW.replace(FOLDER / "plan.html")
