// Plots as inline SVG, with the features a report needs. There are no scripts, no network, and only
// the reader's fonts. Every point carries its numbers as a <title>, which browsers show under the
// pointer and screen readers read.

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
  // Draws a line; otherwise marks only, as for a measurement beside its model.
  bool line = true;
  // Index into the palette; series that belong together share one. After kPlotColourCount colours
  // the palette starts again.
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

// A grid of cells. Each has one category, or none if nothing was measured.
struct MapPlot {
  struct Cell {
    std::optional<uint32_t> category;
    bool marked = false;  // drawn with a dot, for the reader to look at
    std::string title;    // shown under the pointer
  };
  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> x_values, y_values;  // y from the bottom up
  std::vector<std::string> categories;
  std::string mark_meaning;  // legend text for `marked`
  std::vector<Cell> cells;   // [y][x]
};

// Returns an <svg> element of about 640 x 380 units that scales with its container. A plot without
// a drawable point says so in place of axes.
std::string RenderLinePlot(const LinePlot& plot);
std::string RenderMapPlot(const MapPlot& plot);

// Escapes &, <, > and quotes; control characters become spaces.
std::string EscapeXml(const std::string& text);

// Returns the ticks of an axis from `low` to `high`: 1, 2 or 5 times a power of ten. A log axis
// that spans more than three powers of ten has only those. There are one to ten ticks, ascending.
std::vector<double> PlotTicks(double low, double high, bool log);
// Returns, for example, "1500", "1.5e6" or "0.02": as short as three digits allow.
std::string PlotNumber(double value);

}  // namespace ckv
