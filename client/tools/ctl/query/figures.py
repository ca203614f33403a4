#!/usr/bin/python3
"""Draws the figures of a characterization into report.html, one page without external parts.

    python3 figures.py             in the folder of `ckvctl characterize`, which writes and runs it

It reads samples.csv and report.json of its folder, and needs matplotlib (Debian: python3-matplotlib). It ends with
exit code 3 if there is none.
"""

import collections
import csv
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
NUMBERS = ("query_rows", "tokens", "parallel", "runs", "bytes_out", "bytes_in")
TIMES = ("us", "model_us", "error_us")
WAYS = ("route", "fetch", "local")
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } p { max-width: 46rem; }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; } td.n, th.n { text-align: right; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } .plots svg { max-width: 660px; height: auto; }"""


def read(folder):
    """The samples, and what report.json adds to them."""
    with open(folder / "samples.csv", newline="", encoding="utf-8") as file:
        samples = list(csv.DictReader(line for line in file if not line.startswith("#")))
    for sample in samples:
        sample.update({name: int(sample[name]) for name in NUMBERS})
        sample.update({name: float(sample[name]) for name in TIMES})
    return samples, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def of(samples, *sweeps, fabric):
    return [sample for sample in samples if sample["sweep"] in sweeps and sample["fabric"] == fabric]


def fabrics(samples, sweep):
    return sorted({sample["fabric"] for sample in samples if sample["sweep"] == sweep})


def svg(figure):
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]


def axes(title, x_label, y_label, log_x=False, log_y=False):
    figure, plot = pyplot.subplots(figsize=(6.6, 4), layout="constrained")
    plot.set(title=title, xlabel=x_label, ylabel=y_label)
    if log_x:
        plot.set_xscale("log")
    if log_y:
        plot.set_yscale("log")
    plot.grid(alpha=.3)
    return figure, plot


def draw(plot, samples, name, x, line):
    """A series for each name, in the order of their numbers: measured, and the model in the same colour."""
    groups = collections.defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample[x]):
        groups[name(sample)].append(sample)
    for label in sorted(groups, key=lambda label: (len(label), label)):
        group = groups[label]
        drawn = plot.plot([one[x] for one in group], [one["us"] for one in group], "o-" if line else "o", label=label)
        model = [one for one in group if one["model_us"] > 0]
        if model:
            plot.plot([one[x] for one in model], [one["model_us"] for one in model], "-", color=drawn[0].get_color(),
                      label=f"{label}, model")


def finish(figure, plot):
    plot.legend(fontsize="small")
    return svg(figure)


def routes(samples, _report):
    for fabric in fabrics(samples, "route"):
        figure, plot = axes(f"{fabric}: one layer routed, measured and predicted", "query rows (M_q)", "us", True, True)
        draw(plot, of(samples, "route", fabric=fabric), lambda sample: f"{sample['tokens']} tokens", "query_rows",
             False)
        yield finish(figure, plot)


def kernels(samples, report):
    """The time of a token of cKV in a kernel: computing, bringing the row in, and both."""
    here = of(samples, "here", fabric="")
    longest = max((sample["tokens"] for sample in here), default=0)
    for kernel in report["kernels"]:
        if not kernel["points"]:
            continue
        figure, plot = axes(f"{kernel['name']}: {kernel['about']}", "query rows (M_q)", "ns a token", True, True)
        rows, *curves = zip(*kernel["points"])
        labels = ("computing, rows in a cache", "bringing a row in: the floor", "both, the model")
        for label, curve in zip(labels, curves):
            plot.plot(rows, curve, "-", label=label)
        measured = [sample for sample in here if sample["tokens"] == longest and kernel["name"] == "here"]
        if measured:
            plot.plot([sample["query_rows"] for sample in measured],
                      [1e3 * sample["us"] / sample["tokens"] for sample in measured], "o", color="C2",
                      label=f"measured, {longest} tokens")
        yield finish(figure, plot)


def choices(_samples, report):
    """Which way is the cheapest, for each number of steps."""
    for findings in report["findings"]:
        grid = findings["grid"]
        rows, tokens = (sorted({point[name] for point in grid}) for name in ("query_rows", "tokens"))
        for steps in sorted({point["steps"] for point in grid}):
            figure, plot = axes(f"{findings['fabric']}, {steps} step{'s' if steps > 1 else ''}: the cheapest",
                                "query rows (M_q)", "tokens of the chunk")
            points = [point for point in grid if point["steps"] == steps]
            for way in WAYS:
                cells = [point for point in points if point["best"] == way]
                plot.scatter([rows.index(one["query_rows"]) for one in cells],
                             [tokens.index(one["tokens"]) for one in cells], marker="s", s=220, label=way)
            wrong = [point for point in points if not point["right"]]
            if wrong:
                plot.scatter([rows.index(one["query_rows"]) for one in wrong],
                             [tokens.index(one["tokens"]) for one in wrong], marker="o", s=40, color="white",
                             edgecolor="black", label="the predicate chose another, by more than the tie")
            plot.set_xticks(range(len(rows)), rows)
            plot.set_yticks(range(len(tokens)), tokens)
            yield finish(figure, plot)


def shapes(samples, report):
    """The cost of a chunk, once, against its size."""
    for fabric in fabrics(samples, "fetch"):
        figure, plot = axes(f"{fabric}: what a chunk costs", "tokens", "us", True, True)
        draw(plot, of(samples, "fetch", fabric=fabric), lambda _: "fetch and splice", "tokens", True)
        draw(plot, of(samples, "local", fabric=""), lambda _: "prefill", "tokens", True)
        routed = of(samples, "route", fabric=fabric)
        fewest = min((sample["query_rows"] for sample in routed), default=0)
        step = sorted((sample["tokens"], sample["us"] * report["layers"]) for sample in routed
                      if sample["query_rows"] == fewest)
        plot.plot([tokens for tokens, _ in step], [us for _, us in step], "-",
                  label="one step of routes, the fewest query rows")
        yield finish(figure, plot)


def elbow(samples):
    """The last count whose latency is at most twice that of the first."""
    curve = sorted((sample["parallel"], sample["us"]) for sample in samples)
    below = [parallel for parallel, us in curve if us > 2 * curve[0][1]]
    return max((parallel for parallel, _ in curve if not below or parallel < below[0]), default=0)


def growth(samples):
    """How much longer the highest count takes than the first."""
    curve = sorted((sample["parallel"], sample["us"]) for sample in samples)
    return curve[-1][1] / curve[0][1] if curve else 0


def parallel(sweep, title, x_label):
    def plots(samples, _report):
        for fabric in fabrics(samples, sweep):
            chosen = of(samples, sweep, fabric=fabric)
            figure, plot = axes(f"{fabric}: {title} (elbow at {elbow(chosen)})", x_label, "us")
            draw(plot, chosen, lambda _: "mean", "parallel", True)
            yield finish(figure, plot)
    return plots


def scatter(samples, _report):
    for fabric in fabrics(samples, "scatter"):
        both = of(samples, "scatter", "gather", fabric=fabric)
        routed, fetched = (of(samples, sweep, fabric=fabric) for sweep in ("scatter", "gather"))
        rows, holders = (max(sample[name] for sample in routed) for name in ("tokens", "parallel"))
        title = (f"{fabric}: {rows} chosen rows (route x {growth(routed):.1f}, fetch x {growth(fetched):.1f} "
                 f"from 1 to {holders} holders)")
        figure, plot = axes(title, "holders", "us")
        plot.title.set_fontsize("medium")
        draw(plot, both, lambda sample: {"scatter": "route", "gather": "fetch rows"}[sample["sweep"]], "parallel", True)
        yield finish(figure, plot)


SECTIONS = (
    ("Route: measured against the model",
     "Marks are means of measured round trips of one layer; lines are T_probe + bytes / bandwidth + compute + merge, "
     "with the calibrated constants. Calls of several frames overlap as far as the wire does by itself.", routes),
    ("Kernels and memory",
     "A kernel computes with a token's row, for each query row, and brings the row in from memory, once for all. As "
     "far as the processor reads ahead, the longer of the two hides the shorter. Few query rows rest on the floor.",
     kernels),
    ("Which is cheapest",
     "For a chunk attended again and again: by the measured times, a cell's colour is the cheapest way over all steps "
     "and layers.", choices),
    ("The cost of a chunk", "Once for a chunk, and one step of routing to it instead.", shapes),
    ("Fan-in", "One holder, and more and more requesters at once.",
     parallel("fan-in", "a route of one layer", "requesters")),
    ("Scatter",
     "As many rows of one layer, chosen by chance as an indexer does, of more and more holders: attended at the "
     "holders, or fetched together. Holders answer side by side; what is fetched of them shares this machine's link.",
     scatter),
    ("Congestion", "One link, and more and more fetches at once.",
     parallel("congestion", "a fetch of one layer", "flows")))


def table(head, rows):
    """A table whose first column is text and whose others are numbers."""
    def line(cells, kind):
        return "<tr>" + "".join(f"<{kind}{' class=n' if i else ''}>{html.escape(str(cell))}</{kind}>"
                                for i, cell in enumerate(cells)) + "</tr>\n"
    return "<table>\n" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>\n"


def percent(share, count=1):
    return f"{100 * share:.1f} %" if count else "-"


def summary(report):
    facts = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>\n"
                    for name, value in report["facts"])
    head = ("fabric", "MAPE, all", "MAPE, M_q ≥ 512", "routes", "regret", "right, outside a 10 % tie",
            "points outside it", "right, where that is no noise", "points beyond noise")
    rows = [(one["fabric"], percent(one["mape"]), percent(one["mape_large"]), one["routes"], percent(one["regret"]),
             percent(one["right_share"], one["clear_points"]), one["clear_points"],
             percent(one["resolved_right_share"], one["resolved_points"]), one["resolved_points"])
            for one in report["findings"]]
    return (f"<table>\n{facts}</table>\n<h2>How well the model fits, and what its choices cost</h2>\n" +
            table(head, rows))


def bytes_moved(samples, report):
    rows = []
    for sample in samples:
        if sample["sweep"] == "route" and sample["bytes_out"]:
            routed, fetched = sample["bytes_out"] + sample["bytes_in"], sample["tokens"] * report["row_bytes"]
            rows.append((sample["fabric"], sample["query_rows"], sample["tokens"], routed, fetched,
                         f"{100 * (routed / fetched - 1):+.0f} %"))
    if not rows:
        return ""
    return ("<h2>Bytes moved a layer</h2>\n<p>A route's frames as they were counted, headers included, against the "
            "rows of one layer of the chunk.</p>\n<details><summary>all points</summary>\n" +
            table(("fabric", "M_q", "tokens", "routed", "rows", "difference"), rows) + "</details>\n")


def page(samples, report):
    title = html.escape(report["title"])
    text = (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
            f'content="width=device-width">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
            f"<h1>{title}</h1>\n{summary(report)}")
    for heading, words, figures in SECTIONS:
        plots = list(figures(samples, report))
        if plots:
            text += f'<h2>{heading}</h2>\n<p>{words}</p>\n<div class="plots">\n{"".join(plots)}</div>\n'
    return text + bytes_moved(samples, report) + "</body>\n</html>\n"


if __name__ == "__main__":
    FOLDER = pathlib.Path(__file__).resolve().parent
    (FOLDER / "report.html").write_text(page(*read(FOLDER)), encoding="utf-8")
