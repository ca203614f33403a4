// Renders plots as inline SVG, with the features a report needs: no scripts, no network, and only
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
  // Draws a line; otherwise marks only, for example for measurements next to their model.
  bool line = true;
  // Index into the palette; related series share one. After kPlotColourCount colours the palette
  // repeats.
  uint32_t colour = 0;
};
inline constexpr uint32_t kPlotColourCount = 6;

struct PlotAxis {
  std::string label;  // with its unit
  bool log = false;   // omits values that are not above 0
};

struct LinePlot {
  std::string title;
  PlotAxis x, y;
  std::vector<PlotSeries> series;
};

// A grid of cells. Each cell has one category, or none if nothing was measured.
struct MapPlot {
  struct Cell {
    std::optional<uint32_t> category;
    bool marked = false;  // drawn with a dot to draw the reader's attention
    std::string title;    // shown under the pointer
  };
  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> x_values, y_values;  // y from the bottom up
  std::vector<std::string> categories;
  std::string mark_meaning;  // legend text for `marked`
  std::vector<Cell> cells;   // [y][x]
};

// Returns an <svg> element of about 640 x 380 units that scales with its container. If no point can
// be drawn, a message replaces the axes.
std::string RenderLinePlot(const LinePlot& plot);
std::string RenderMapPlot(const MapPlot& plot);

// Escapes &, <, > and quotes; control characters become spaces.
std::string EscapeXml(const std::string& text);

// Returns the ticks of an axis from `low` to `high`: 1, 2 or 5 times a power of ten. A log axis
// that spans more than three powers of ten has ticks only at the powers. Returns one to ten ticks,
// ascending.
std::vector<double> PlotTicks(double low, double high, bool log);
// Formats a number, for example "1500", "1.5e6" or "0.02", as short as three digits allow.
std::string PlotNumber(double value);

}  // namespace ckv
