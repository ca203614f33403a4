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
TIMES = ("us", "model_us", "error_us", "kernel_us", "spread")
WAYS = ("route", "fetch", "local")
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } p { max-width: 46rem; }
.answer { font-size: 1.15rem; } .paper { color: #555; border-left: 3px solid #ccc; padding-left: .6rem; }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; } td.n, th.n { text-align: right; } .wide { overflow-x: auto; } .wide td.n { white-space: nowrap; }
.wide td:first-child { overflow-wrap: normal; min-width: 7rem; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } .plots svg { width: min(100%, 600px); height: auto; }"""
DECODE_ROWS, DECODE_TOKENS = 256, 2048  # the decode point of figure 6
LARGE_ROWS = 1024
# Table 1 and Table 2 of arXiv:2606.01502.
PAPER_PAYLOADS = ((900, 16.2, 62.8, 24.6), (2184, 15.9, 115.8, 24.7), (4368, 16.6, 207.7, 24.7), (8736, 16.1, 389.1, 24.7))
PAPER_FABRICS = (("H100 IBGDA, between nodes", 16, 25, "7 %", "16 %"), ("H100 NVLink 4.0", 1.2, 21, "3 %", "18 %"),
                 ("A100 NVLink 3.0", 1.6, 18, "4 %", "22 %"), ("RTX Pro 6000 PCIe Gen5", 4.8, 22, "2 %", "7 %"),
                 ("A40 PCIe Gen4", 8.7, 19, "13 %", "16 %"))


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


def draw(plot, samples, name, x, line, y="us"):
    """A series for each name, in the order of their numbers: measured, and the model in the same colour. Bars are
    standard errors."""
    groups = collections.defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample[x]):
        groups[name(sample)].append(sample)
    for label in sorted(groups, key=lambda label: (len(label), label)):
        group = groups[label]
        drawn = plot.plot([one[x] for one in group], [one[y] for one in group], "o-" if line else "o", label=label)
        if y == "us":
            plot.errorbar([one[x] for one in group], [one["us"] for one in group], fmt="none", capsize=2,
                          yerr=[one["error_us"] for one in group], ecolor=drawn[0].get_color())
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
        plot.title.set(fontsize="small", wrap=True)
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


def byte_map(_samples, report):
    """By the bytes of the wire alone: M_q (q + p) against the rows of the chunk."""
    if not report.get("payload_bytes"):
        return
    rows, tokens = [2 ** i for i in range(0, 14)], [2 ** i for i in range(6, 16)]
    saved = [[100 * (1 - count * report["payload_bytes"] / (size * report["row_bytes"])) for count in rows]
             for size in tokens]
    figure, plot = axes("bytes that routing saves (%)", "query rows (M_q)", "tokens of the chunk", True, True)
    plot.grid(False)
    drawn = plot.pcolormesh(rows, tokens, saved, cmap="RdYlGn", vmin=-100, vmax=100, shading="nearest")
    figure.colorbar(drawn)
    line = [size * report["row_bytes"] / report["payload_bytes"] for size in tokens]
    plot.plot(line, tokens, "k--", label="break-even, M_q = c_t b / (q + p)")
    plot.set_xlim(rows[0], rows[-1])
    yield finish(figure, plot)


def scatter(samples, report):
    for fabric in fabrics(samples, "scatter"):
        for rows in sorted({sample["tokens"] for sample in of(samples, "scatter", fabric=fabric)}):
            both = [one for one in of(samples, "scatter", "gather", fabric=fabric) if one["tokens"] == rows]
            routed, fetched = (of(both, sweep, fabric=fabric) for sweep in ("scatter", "gather"))
            holders = max(sample["parallel"] for sample in routed)
            title = (f"{fabric}: {rows} chosen rows, {report['layers']} layers (route x {growth(routed):.1f}, "
                     f"fetch x {growth(fetched):.1f} from 1 to {holders} holders)")
            figure, plot = axes(title, "holders", "us a step", log_y=True)
            plot.title.set_fontsize("medium")
            draw(plot, both, lambda sample: {"scatter": "route", "gather": "fetch rows"}[sample["sweep"]], "parallel",
                 True)
            yield finish(figure, plot)


def kernel_fan_in(samples, _report):
    for fabric in fabrics(samples, "kernel"):
        chosen = of(samples, "kernel", fabric=fabric)
        tokens = max(sample["tokens"] for sample in chosen)
        figure, plot = axes(f"a holder's kernel, {tokens} tokens, one layer", "requesters in a batch", "us in the kernel",
                            True, True)
        draw(plot, chosen, lambda sample: f"{sample['query_rows']} heads", "parallel", True, "kernel_us")
        yield finish(figure, plot)


def store(samples, report):
    for fabric in fabrics(samples, "store"):
        chosen = of(samples, "store", fabric=fabric)
        figure, plot = axes(f"{fabric}: a holder's kernel, {report['heads']} query rows", "tokens of the store (2,048 x)",
                            "us in the kernel", True, False)
        draw(plot, chosen, lambda sample: f"{sample['tokens']} rows chosen (x {kernel_growth(chosen, sample):.2f})",
             "parallel", True, "kernel_us")
        plot.set_ylim(bottom=0)
        yield finish(figure, plot)


def kernel_growth(samples, of_these):
    """How much longer the kernel takes in the largest store than in the smallest."""
    curve = sorted((one["parallel"], one["kernel_us"]) for one in samples if one["tokens"] == of_these["tokens"])
    return curve[-1][1] / curve[0][1] if curve and curve[0][1] > 0 else 0


def over_bandwidth(_samples, report):
    lanes = [lane for lane in report.get("lanes", []) if lane["over_bandwidth"]]
    if not lanes:
        return
    figure, plot = axes(f"the model: one step, M_q = {DECODE_ROWS}, {DECODE_TOKENS} tokens", "bandwidth (GB/s)", "us",
                        True, True)
    for lane in lanes:
        x = [point["bandwidth_bytes_per_s"] / 1e9 for point in lane["over_bandwidth"]]
        for index, way in enumerate(WAYS):
            y = [point["us"][index] for point in lane["over_bandwidth"]]
            if None not in y:
                plot.plot(x, y, "-", label=f"{way}, probe and kernel of {lane['fabric']}")
        plot.axvline(lane["bandwidth_bytes_per_s"] / 1e9, linestyle=":", color="grey")
    yield finish(figure, plot)


def over_fabrics(samples, _report):
    routed = [sample for sample in samples if sample["sweep"] == "route"]
    if not routed:
        return
    tokens = min({sample["tokens"] for sample in routed}, key=lambda count: abs(count - DECODE_TOKENS))
    figure, plot = axes(f"a route of one layer, {tokens} tokens", "query rows (M_q)", "us", True, True)
    chosen = [{**sample, "model_us": 0} for sample in routed if sample["tokens"] == tokens]
    draw(plot, chosen, lambda sample: sample["fabric"], "query_rows", True)
    yield finish(figure, plot)


def congestion(samples, _report):
    for fabric in fabrics(samples, "congestion"):
        chosen = of(samples, "congestion", fabric=fabric)
        figure, plot = axes(f"{fabric}: a route of one layer, {chosen[0]['tokens']} tokens", "flows at once", "us",
                            log_y=True)
        draw(plot, chosen, lambda sample: f"M_q = {sample['query_rows']}" + rise(chosen, sample), "parallel", True)
        yield finish(figure, plot)


def rise(samples, of_this):
    curve = [one for one in samples if one["query_rows"] == of_this["query_rows"]]
    return f" (x {growth(curve):.1f})"


SECTIONS = (
    ("Route: measured against the model",
     "Figure 2(b). Marks are means of measured round trips of one layer; lines are T_probe + bytes / bandwidth + compute "
     "+ merge, with the calibrated constants. Calls of several frames overlap as far as the wire does by itself.",
     "7 % of the measured time for M_q of 512 and more over IBGDA, 16 % for all.", routes),
    ("Kernels and memory",
     "A kernel computes with a token's row, for each query row, and brings the row in from memory, once for all. As "
     "far as the processor reads ahead, the longer of the two hides the shorter. Few query rows rest on the floor.",
     "", kernels),
    ("Bytes: route or fetch", "Figures 1(a) and 3(b). By bytes alone, for one layer.",
     "76 % fewer bytes for 256 query rows and 2,048 tokens, and break-even at 1,080 rows.", byte_map),
    ("Which is cheapest",
     "For a chunk attended again and again: by the measured times, a cell's colour is the cheapest way over all steps "
     "and layers.", "route, up to about as many query rows as the chunk has tokens.", choices),
    ("The cost of a chunk", "Figure 1(b). Once for a chunk, and one step of routing to it instead.",
     "a splice of 3 ms and a pull of 2.5 ms for 2,048 tokens of V2-Lite; prefill is dearer above 75 to 220 tokens.", shapes),
    ("Scatter",
     "Figure 4(a). As many rows of each layer, chosen by chance as an indexer does, of more and more holders: attended at "
     "the holders, layer after layer, or fetched together. Holders answer in parallel; rows that are fetched share this "
     "machine's link.", "fetch grows from 1.3 to 3.9 ms a layer from 1 to 7 holders; route stays at tens of us.",
     scatter),
    ("Kernel over requesters", "Figure 4(b). The query rows of several requesters, computed in one batch.",
     "flat to 8 requesters, then linear: 15 to 37 us for up to 16, 0.4 ms for 256, on an H100.", kernel_fan_in),
    ("Selection and the size of the store",
     "Section 6.3. Rows chosen from 2,048 to 32,768 tokens of one layer, in chunks of 2,048. A holder computes a partial "
     "for each chunk that rows are chosen from, and merges them, so that bits do not depend on where chunks are. The time "
     "therefore grows with these chunks, not with the tokens in them.",
     "within 15 % from 2k to 32k tokens.", store),
    ("Fan-in", "One holder, and more and more callers of this requester at once, one token's query rows each.",
     "about 8 requesters to a holder.", parallel("fan-in", "a route of one layer", "callers at once")),
    ("Staging", "Figure 5. One holder, and more and more pulls of a layer at once.",
     "8 streams are the elbow, 16 too many.", parallel("staging", "a fetch of one layer", "pulls at once")),
    ("Cost over bandwidth", "Figure 6(a). The calibrated model at other bandwidths. Dotted: what was measured here.",
     "route stays cheapest from 0.2 to 1,000 GB/s.", over_bandwidth),
    ("Route over fabrics", "Figure 6(b). The fabrics of this machine together.",
     "31 to 48 us for M_q of 256 on five fabrics, without the kernel's time.", over_fabrics),
    ("Congestion", "Figure 7. One link, and more and more routes at once, over the shortest chunk. In brackets: the last "
     "against the first.", "flat up to 2 other flows, then +119 % at M_q of 1,024.", congestion))


def table(head, rows):
    """A table whose first column is text and whose others are numbers."""
    def line(cells, kind):
        return "<tr>" + "".join(f"<{kind}{' class=n' if i else ''}>{html.escape(str(cell))}</{kind}>"
                                for i, cell in enumerate(cells)) + "</tr>\n"
    return ('<div class="wide"><table>\n' + line(head, "th") + "".join(line(row, "td") for row in rows) +
            "</table></div>\n")


def percent(share, count=1):
    return f"{100 * share:.1f} %" if count else "-"


def said(report):
    """The answer, or why there is none."""
    if report.get("disturbed"):
        return (f'<p class="answer">The machine was disturbed while it was measured: {html.escape(report["disturbed"])}. '
                "There are no findings. Measure again on an idle machine.</p>\n")
    return f'<p class="answer">{html.escape(report["answer"])}</p>\n' if report.get("answer") else ""


def summary(report):
    facts = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>\n"
                    for name, value in report["facts"])
    text = f"<table>\n{facts}</table>\n"
    if report.get("disturbed"):
        return text
    head = ("fabric", "MAPE, all", "MAPE, M_q ≥ 512", "routes", "regret", "right, outside a 10 % tie",
            "points outside it", "right, where that is no noise", "points beyond noise")
    rows = [(one["fabric"], percent(one["mape"]), percent(one["mape_large"]), one["routes"], percent(one["regret"]),
             percent(one["right_share"], one["clear_points"]), one["clear_points"],
             percent(one["resolved_right_share"], one["resolved_points"]), one["resolved_points"])
            for one in report["findings"]]
    return text + "<h2>How well the model fits, and what its choices cost</h2>\n" + table(head, rows)


def fabric_constants(report):
    """Table 2."""
    errors = {one["fabric"]: one for one in report["findings"]}
    rows = [(lane["fabric"], f"{lane['t_probe_us']:.1f}", f"{lane['bandwidth_bytes_per_s'] / 1e9:.2f}",
             percent(errors[lane["fabric"]]["mape_large"]), percent(errors[lane["fabric"]]["mape"]))
            for lane in report.get("lanes", []) if lane["fabric"] in errors]
    if not rows:
        return ""
    rows += [(f"the paper: {name}", *values) for name, *values in PAPER_FABRICS]
    return ("<h2>Two constants a fabric</h2>\n<p>Table 2. The paper's errors are of the transfer alone; ours include the "
            "kernel.</p>\n" + table(("fabric", "T_probe, us", "BW, GB/s", "MAPE, M_q ≥ 512", "MAPE, all"), rows))


def payload_bandwidths(samples, merge_us):
    """Table 1's rows: fabric, q + p, the time of one row without its kernel, that of many, and the bandwidth."""
    for fabric in fabrics(samples, "payload"):
        chosen = of(samples, "payload", fabric=fabric)
        for payload in sorted({sample["tokens"] for sample in chosen}):
            beside = {one["query_rows"]: one["us"] - one["kernel_us"] - one["query_rows"] * merge_us
                      for one in chosen if one["tokens"] == payload}
            if len(beside) < 2:
                continue
            probe, full = beside[min(beside)], beside[max(beside)]
            if full > probe:
                yield fabric, payload, probe, full, max(beside) * payload / (full - probe) / 1e3


def payloads(samples, report):
    merges = [lane["merge_per_row_us"] for lane in report.get("lanes", [])]
    found = list(payload_bandwidths(samples, merges[0] if merges else 0))
    if not found:
        return ""
    rows = [(fabric, payload, f"{probe:.1f}", f"{full:.1f}", f"{rate:.2f}") for fabric, payload, probe, full, rate in found]
    rows += [("the paper: IBGDA", *values) for values in PAPER_PAYLOADS]
    spans = []
    for fabric in sorted({one[0] for one in found}):
        rates = [one[4] for one in found if one[0] == fabric]
        spans.append(f"{fabric}: from {min(rates):.2f} to {max(rates):.2f} GB/s, x {max(rates) / min(rates):.2f}")
    return ("<h2>Does bandwidth depend on the payload?</h2>\n<p>Table 1. Routes of rows of other widths and with bf16 or f32 "
            "partials, without the time in kernel and merge. " + html.escape("; ".join(spans)) + ".</p>\n" +
            table(("fabric", "q + p, bytes", "1 row, us", f"{LARGE_ROWS} rows, us", "bandwidth, GB/s"), rows))


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


def not_measured(samples):
    """The paper's figures that need other hardware, or more of it than this fleet has."""
    needs = [("Section 6.1, IBGDA against a proxy", "NVSHMEM on GPUs with an InfiniBand card each"),
             ("Figure 6(b), NVLink and PCIe peers", "GPUs that reach each other's memory"),
             ("Section 8, leaf and spine", "an InfiniBand fabric of two levels")]
    if not fabrics(samples, "route") or "verbs" not in fabrics(samples, "route"):
        needs.append(("Figures 2(b), 6 and 7 over RDMA", "an RDMA device here and at the holder (--fabric verbs)"))
    if max((sample["parallel"] for sample in samples if sample["sweep"] == "scatter"), default=0) < 7:
        needs.append(("Figure 4(a) up to 7 holders", "as many holders"))
    return "<h2>Not measured here</h2>\n" + table(("the paper's", "needs"), needs)


def page(samples, report):
    title = html.escape(report["title"])
    text = (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
            f'content="width=device-width">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
            f"<h1>{title}</h1>\n{said(report)}{summary(report)}{fabric_constants(report)}{payloads(samples, report)}")
    for heading, words, paper, figures in SECTIONS:
        plots = list(figures(samples, report)) if figures is not choices or not report.get("disturbed") else []
        if plots:
            beside = f'<p class="paper">The paper: {paper}</p>\n' if paper else ""
            text += f'<h2>{heading}</h2>\n<p>{words}</p>\n{beside}<div class="plots">\n{"".join(plots)}</div>\n'
    return text + bytes_moved(samples, report) + not_measured(samples) + "</body>\n</html>\n"


if __name__ == "__main__":
    FOLDER = pathlib.Path(__file__).resolve().parent
    NEW = FOLDER / "report.html.new"  # a page is whole or not there
    NEW.write_text(page(*read(FOLDER)), encoding="utf-8")
    NEW.replace(FOLDER / "report.html")
