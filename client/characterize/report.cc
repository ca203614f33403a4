#include "client/characterize/report.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "client/characterize/plot.h"

namespace ckv {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #ccc; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --faint: #444; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1360px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plot { flex: 1 1 560px; max-width: 660px; height: auto; }
.plot text { font-size: 12px; fill: var(--ink); } .plot .title { font-size: 14px; }
.plot .grid { stroke: var(--faint); } .plot .empty { stroke: var(--faint); }
.plot .mark { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; }
p { max-width: 46rem; }
)css";

using Key = std::function<std::pair<std::string, double>(const Sample&)>;  // series, x

// Series of the samples that `wanted` takes: measured marks and, where the model says anything, its
// line in the same colour. Ordered by name as numbers where they are.
std::vector<PlotSeries> SeriesOf(std::span<const Sample> samples,
                                 const std::function<bool(const Sample&)>& wanted, const Key& key,
                                 bool line) {
  struct Both {
    std::vector<PlotPoint> measured, model;
  };
  std::map<std::pair<size_t, std::string>, Both> groups;
  for (const Sample& sample : samples) {
    if (!wanted(sample)) continue;
    const auto [name, x] = key(sample);
    Both& both = groups[{name.size(), name}];
    both.measured.push_back({x, sample.us});
    if (sample.model_us > 0) both.model.push_back({x, sample.model_us});
  }
  std::vector<PlotSeries> series;
  uint32_t colour = 0;
  const auto by_x = [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; };
  for (auto& [name, both] : groups) {
    std::sort(both.measured.begin(), both.measured.end(), by_x);
    std::sort(both.model.begin(), both.model.end(), by_x);
    series.push_back({name.second, both.measured, line, colour});
    if (!both.model.empty()) series.push_back({name.second + ", model", both.model, true, colour});
    ++colour;
  }
  return series;
}

std::function<bool(const Sample&)> Of(Sweep sweep, const std::string& fabric) {
  return [=](const Sample& sample) {
    return sample.key.sweep == sweep && sample.key.fabric == fabric;
  };
}

std::set<std::string> FabricsOf(std::span<const Sample> samples, Sweep sweep) {
  std::set<std::string> fabrics;
  for (const Sample& sample : samples) {
    if (sample.key.sweep == sweep) fabrics.insert(sample.key.fabric);
  }
  return fabrics;
}

std::string Section(const std::string& title, const std::string& words, const std::string& plots) {
  if (plots.empty()) return "";
  return absl::StrFormat("<h2>%s</h2>\n<p>%s</p>\n<div class=\"plots\">\n%s</div>\n", title, words,
                         plots);
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// Without points there is no share.
std::string ShareOf(double share, uint32_t count) { return count == 0 ? "-" : Percent(share); }

std::string Summary(const ReportInput& input) {
  std::string html = "<table>\n";
  for (const auto& [name, value] : input.facts) {
    absl::StrAppendFormat(&html, "<tr><th>%s</th><td>%s</td></tr>\n", EscapeXml(name),
                          EscapeXml(value));
  }
  html +=
      "</table>\n<h2>How well the model fits, and what its choices cost</h2>\n<table>\n"
      "<tr><th>fabric</th><th class=\"n\">MAPE, all</th><th class=\"n\">MAPE, M_q &ge; 512</th>"
      "<th class=\"n\">routes</th><th class=\"n\">regret</th>"
      "<th class=\"n\">right, outside a 10 % tie</th><th class=\"n\">points outside it</th>"
      "<th class=\"n\">right, where that is no noise</th><th class=\"n\">points beyond noise</th>"
      "</tr>\n";
  for (const FabricFindings& findings : input.findings) {
    absl::StrAppendFormat(
        &html,
        "<tr><td>%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%d</td>"
        "<td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%d</td>"
        "<td class=\"n\">%s</td><td class=\"n\">%d</td></tr>\n",
        EscapeXml(findings.fabric), Percent(findings.all.mape), Percent(findings.large.mape),
        findings.all.count, Percent(findings.regret),
        ShareOf(findings.right_share, findings.clear_count), findings.clear_count,
        ShareOf(findings.resolved_right_share, findings.resolved_count), findings.resolved_count);
  }
  return html + "</table>\n";
}

std::string RoutePlots(const ReportInput& input) {
  std::string plots;
  for (const std::string& fabric : FabricsOf(input.samples, Sweep::kRoute)) {
    plots += RenderLinePlot({fabric + ": one layer routed, measured and predicted",
                             {"query rows (M_q)", true},
                             {"us", true},
                             SeriesOf(
                                 input.samples, Of(Sweep::kRoute, fabric),
                                 [](const Sample& sample) {
                                   return std::pair(absl::StrFormat("%d tokens", sample.key.tokens),
                                                    double(sample.key.query_rows));
                                 },
                                 /*line=*/false)});
  }
  return plots;
}

// The time that a token of cKV takes in a kernel, over query rows: computing, bringing the row in,
// and both.
// Marks of the kernel here are its measured times over the longest chunk.
std::string KernelPlots(const ReportInput& input) {
  uint64_t longest = 0;
  for (const Sample& sample : input.samples) {
    if (sample.key.sweep == Sweep::kHere) longest = std::max(longest, sample.key.tokens);
  }
  std::string plots;
  for (const KernelCurve& kernel : input.kernels) {
    const ComputeCurve& curve = kernel.curve;
    if (curve.empty() || !(curve.floor.us_per_token > 0)) continue;
    PlotSeries computing = {"computing, rows in a cache", {}, true, 0};
    PlotSeries reading = {"bringing a row in: the floor", {}, true, 1};
    PlotSeries both = {"both, the model", {}, true, 2};
    ComputeCurve alone = curve;
    alone.base_us = alone.per_row_us = 0;
    ComputeCurve warm = alone;
    warm.floor = {};
    const double last = curve.anchors[curve.anchor_count - 1].rows;
    for (double rows = curve.anchors[0].rows; rows > 0; rows = std::min(last, rows * 1.2)) {
      computing.points.push_back({rows, 1e3 * warm.Us(rows, 1)});
      reading.points.push_back({rows, 1e3 * curve.floor.us_per_token});
      both.points.push_back({rows, 1e3 * alone.Us(rows, 1)});
      if (rows >= last) break;
    }
    std::vector<PlotSeries> series = {computing, reading, both};
    PlotSeries measured = {absl::StrFormat("measured, %d tokens", longest), {}, false, 2};
    for (const Sample& sample : input.samples) {
      if (kernel.name != "here" || !Of(Sweep::kHere, "")(sample) || sample.key.tokens != longest)
        continue;
      measured.points.push_back(
          {double(sample.key.query_rows), 1e3 * sample.us / double(sample.key.tokens)});
    }
    if (!measured.points.empty()) series.push_back(std::move(measured));
    plots += RenderLinePlot({absl::StrFormat("%s: %s", kernel.name, DescribeFloor(curve)),
                             {"query rows (M_q)", true},
                             {"ns a token", true},
                             std::move(series)});
  }
  return plots;
}

// The points of one fabric and number of steps as a grid.
std::string MapOf(const FabricFindings& findings, uint32_t steps) {
  std::set<uint64_t> rows, tokens;
  for (const GridPoint& point : findings.grid) {
    rows.insert(point.query_rows);
    tokens.insert(point.tokens);
  }
  MapPlot plot;
  plot.title =
      absl::StrFormat("%s, %d step%s: the cheapest", findings.fabric, steps, steps == 1 ? "" : "s");
  plot.x_label = "query rows (M_q)";
  plot.y_label = "tokens of the chunk";
  for (const uint64_t value : rows) plot.x_values.push_back(absl::StrFormat("%d", value));
  for (const uint64_t value : tokens) plot.y_values.push_back(absl::StrFormat("%d", value));
  plot.categories = {"route", "fetch", "local"};
  plot.mark_meaning = "the predicate chose another, by more than the tie";
  plot.cells.resize(rows.size() * tokens.size());
  for (const GridPoint& point : findings.grid) {
    if (point.steps != steps) continue;
    const auto x = std::distance(rows.begin(), rows.find(point.query_rows));
    const auto y = std::distance(tokens.begin(), tokens.find(point.tokens));
    MapPlot::Cell& cell = plot.cells[size_t(y) * rows.size() + size_t(x)];
    cell.category = static_cast<uint32_t>(point.best);
    cell.marked = point.chosen && !point.right();
    cell.title = absl::StrFormat("M_q %d, %d tokens:", point.query_rows, point.tokens);
    for (size_t i = 0; i < kPrimitiveCount; ++i) {
      if (!point.us[i]) continue;
      absl::StrAppendFormat(&cell.title, " %s %s us", std::string(PrimitiveName(Primitive(i))),
                            PlotNumber(*point.us[i]));
    }
    if (point.chosen)
      absl::StrAppendFormat(&cell.title, "; chosen: %s", std::string(PrimitiveName(*point.chosen)));
  }
  return RenderMapPlot(plot);
}

std::string Maps(const ReportInput& input) {
  std::string plots;
  for (const FabricFindings& findings : input.findings) {
    std::set<uint32_t> steps;
    for (const GridPoint& point : findings.grid) steps.insert(point.steps);
    for (const uint32_t count : steps) plots += MapOf(findings, count);
  }
  return plots;
}

// Plots the cost of a chunk, once, against its size: a fetch, a prefill, and one step of routes.
std::string ShapePlots(const ReportInput& input) {
  std::string plots;
  for (const std::string& fabric : FabricsOf(input.samples, Sweep::kFetch)) {
    const auto by_tokens = [](std::string name) {
      return [name](const Sample& sample) { return std::pair(name, double(sample.key.tokens)); };
    };
    auto series =
        SeriesOf(input.samples, Of(Sweep::kFetch, fabric), by_tokens("fetch and splice"), true);
    const auto add = [&](std::vector<PlotSeries> more) {
      for (PlotSeries& one : more) {
        one.colour += static_cast<uint32_t>(series.size());
        series.push_back(std::move(one));
      }
    };
    add(SeriesOf(input.samples, Of(Sweep::kLocal, ""), by_tokens("prefill"), true));
    PlotSeries route = {"one step of routes, the fewest query rows", {}, true, 4};
    uint32_t rows = 0;
    for (const Sample& sample : input.samples) {
      if (!Of(Sweep::kRoute, fabric)(sample)) continue;
      if (rows == 0) rows = sample.key.query_rows;
      if (sample.key.query_rows != rows) continue;
      route.points.push_back({double(sample.key.tokens), sample.us * input.layers});
    }
    std::sort(route.points.begin(), route.points.end(),
              [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    series.push_back(std::move(route));
    plots += RenderLinePlot(
        {fabric + ": what a chunk costs", {"tokens", true}, {"us", true}, std::move(series)});
  }
  return plots;
}

std::string ParallelPlots(const ReportInput& input, Sweep sweep, const std::string& title,
                          const std::string& x_label) {
  std::string plots;
  for (const std::string& fabric : FabricsOf(input.samples, sweep)) {
    const uint32_t elbow = Elbow(input.samples, sweep, fabric);
    plots +=
        RenderLinePlot({absl::StrFormat("%s: %s (elbow at %d)", fabric, title, elbow),
                        {x_label, false},
                        {"us", false},
                        SeriesOf(
                            input.samples, Of(sweep, fabric),
                            [](const Sample& sample) {
                              return std::pair(std::string("mean"), double(sample.key.parallel));
                            },
                            /*line=*/true)});
  }
  return plots;
}

uint64_t RowsChosen(const ReportInput& input) {
  uint64_t rows = 0;
  for (const Sample& sample : input.samples) {
    if (sample.key.sweep == Sweep::kScatter) rows = std::max(rows, sample.key.tokens);
  }
  return rows;
}

// "route x 1.1, fetch x 2.4 from 1 to 4 holders".
std::string ScatterGrowth(const ReportInput& input, const std::string& fabric) {
  const SweepGrowth route = GrowthOf(input.samples, Sweep::kScatter, fabric);
  const SweepGrowth fetch = GrowthOf(input.samples, Sweep::kGather, fabric);
  return absl::StrFormat("route x %.1f, fetch x %.1f from 1 to %d holders", route.ratio,
                         fetch.ratio, route.parallel);
}

std::string ScatterPlots(const ReportInput& input) {
  std::string plots;
  for (const std::string& fabric : FabricsOf(input.samples, Sweep::kScatter)) {
    const auto wanted = [&fabric](const Sample& sample) {
      return sample.key.fabric == fabric &&
             (sample.key.sweep == Sweep::kScatter || sample.key.sweep == Sweep::kGather);
    };
    const auto key = [](const Sample& sample) {
      return std::pair(std::string(sample.key.sweep == Sweep::kScatter ? "route" : "fetch rows"),
                       double(sample.key.parallel));
    };
    plots += RenderLinePlot({absl::StrFormat("%s: %d chosen rows (%s)", fabric, RowsChosen(input),
                                             ScatterGrowth(input, fabric)),
                             {"holders", false},
                             {"us", false},
                             SeriesOf(input.samples, wanted, key, true)});
  }
  return plots;
}

std::string BytesTable(const ReportInput& input) {
  std::string rows;
  for (const Sample& sample : input.samples) {
    const SampleKey& key = sample.key;
    if (key.sweep != Sweep::kRoute || sample.bytes_out == 0) continue;
    const double routed = double(sample.bytes_out + sample.bytes_in);
    const double fetched = double(key.tokens) * input.row_bytes;
    absl::StrAppendFormat(
        &rows,
        "<tr><td>%s</td><td class=\"n\">%d</td><td class=\"n\">%d</td><td class=\"n\">%.0f</td>"
        "<td class=\"n\">%.0f</td><td class=\"n\">%+.0f %%</td></tr>\n",
        EscapeXml(key.fabric), key.query_rows, key.tokens, routed, fetched,
        fetched > 0 ? 100 * (routed / fetched - 1) : 0.0);
  }
  if (rows.empty()) return "";
  return "<h2>Bytes moved a layer</h2>\n<p>A route's frames as they were counted, headers "
         "included, against the rows of one layer of the chunk.</p>\n<details><summary>all "
         "points</summary>\n<table>\n<tr><th>fabric</th><th class=\"n\">M_q</th><th "
         "class=\"n\">tokens</th><th class=\"n\">routed</th><th class=\"n\">rows</th><th "
         "class=\"n\">difference</th></tr>\n" +
         rows + "</table>\n</details>\n";
}

}  // namespace

std::string RenderReport(const ReportInput& input) {
  std::string html = absl::StrFormat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width\">\n<title>%s</title>\n<style>%s</style>\n"
      "</head>\n<body>\n<h1>%s</h1>\n",
      EscapeXml(input.title), kStyle, EscapeXml(input.title));
  html += Summary(input);
  html += Section("Route: measured against the model",
                  "Marks are means of measured round trips of one layer; lines are T_probe + "
                  "bytes / bandwidth + compute + merge, with the calibrated constants. Calls of "
                  "several frames overlap as far as the wire does by itself.",
                  RoutePlots(input));
  html += Section("Kernels and memory",
                  "A kernel computes with a token's row, for each query row, and brings the row in "
                  "from memory, once for all. As far as the processor reads ahead, the longer of "
                  "the two hides the shorter. Few query rows rest on the floor.",
                  KernelPlots(input));
  html += Section("Which is cheapest",
                  "For a chunk attended again and again: by the measured times, a cell's colour is "
                  "the cheapest way over all steps and layers.",
                  Maps(input));
  html += Section("The cost of a chunk", "Once for a chunk, and one step of routing to it instead.",
                  ShapePlots(input));
  html += Section("Fan-in", "One holder, and more and more requesters at once.",
                  ParallelPlots(input, Sweep::kFanIn, "a route of one layer", "requesters"));
  html += Section(
      "Scatter",
      "As many rows of one layer, chosen by chance as an indexer does, of more and more "
      "holders: attended on their holders, or fetched together. Holders answer side by side; "
      "what is fetched of them shares this machine's link.",
      ScatterPlots(input));
  html += Section("Congestion", "One link, and more and more fetches at once.",
                  ParallelPlots(input, Sweep::kCongestion, "a fetch of one layer", "flows"));
  return html + BytesTable(input) + "</body>\n</html>\n";
}

}  // namespace ckv
