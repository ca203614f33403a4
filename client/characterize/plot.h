// Plots as inline SVG: what a report needs and no more. No script, no network, no fonts but the
// reader's; every point carries its numbers as a <title>, which browsers show under the pointer and
// screen readers read.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckv {

struct PlotPoint {
  double x = 0, y = 0;
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
  bool line = true;  // else marks only: a measurement beside its model
  // Which of the palette's colours; series that belong together share one. kPlotColourCount of
  // them, then again from the first.
  uint32_t colour = 0;
};
inline constexpr uint32_t kPlotColourCount = 6;

struct PlotAxis {
  std::string label;  // with its unit
  bool log = false;   // values that are not above 0 are left out
};

struct LinePlot {
  std::string title;
  PlotAxis x, y;
  std::vector<PlotSeries> series;
};

// A grid of cells, each of one category, or none where nothing was measured.
struct MapPlot {
  struct Cell {
    std::optional<uint32_t> category;
    bool marked = false;  // drawn with a dot: what the reader should look at
    std::string title;    // shown under the pointer
  };
  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> x_values, y_values;  // y from the bottom up
  std::vector<std::string> categories;
  std::string mark_meaning;  // of `marked`, for the legend
  std::vector<Cell> cells;   // [y][x]
};

// An <svg> element, about 640 x 380 units, that scales with its container. A plot without a point
// that can be drawn says so in place of axes.
std::string RenderLinePlot(const LinePlot& plot);
std::string RenderMapPlot(const MapPlot& plot);

// &, <, >, quotes; control characters become spaces.
std::string EscapeXml(const std::string& text);

// Where an axis from `low` to `high` has its ticks: 1, 2, 5 times a power of ten, or powers of ten
// alone where a log axis spans more than three of them. At least one, ten at most; ascending.
std::vector<double> PlotTicks(double low, double high, bool log);
// "1500", "1.5e6", "0.02": as short as three digits allow.
std::string PlotNumber(double value);

}  // namespace ckv
