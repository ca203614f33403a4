#include "client/characterize/plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Okabe and Ito's colours: distinct for readers who confuse red and green, on white and on black.
constexpr std::array<const char*, kPlotColourCount> kColours = {"#0072b2", "#d55e00", "#009e73",
                                                                "#cc79a7", "#e69f00", "#56b4e9"};

constexpr double kWidth = 640, kHeight = 380;
constexpr double kLeft = 78, kRight = 16, kTop = 34, kBottom = 50;
constexpr double kLegendLine = 17;
constexpr size_t kTickCountMax = 10;

const char* Colour(uint32_t index) { return kColours[index % kPlotColourCount]; }

struct Scale {
  double low = 0, high = 1;
  double from = 0, to = 1;  // the places at which low and high are drawn
  bool log = false;

  double operator()(double value) const {
    const double share =
        log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return from + share * (to - from);
  }
};

bool Drawn(const LinePlot& plot, const PlotPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!plot.x.log || point.x > 0) &&
         (!plot.y.log || point.y > 0);
}

// From the least to the greatest value; a linear axis starts at 0, and no axis is a point.
Scale ScaleOf(const LinePlot& plot, bool y) {
  const PlotAxis& axis = y ? plot.y : plot.x;
  bool any = false;
  Scale scale{.log = axis.log};
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& point : series.points) {
      if (!Drawn(plot, point)) continue;
      const double value = y ? point.y : point.x;
      scale.low = any ? std::min(scale.low, value) : value;
      scale.high = any ? std::max(scale.high, value) : value;
      any = true;
    }
  }
  if (!axis.log) scale.low = std::min(scale.low, 0.0);
  if (scale.high <= scale.low) scale.high = axis.log ? scale.low * 10 : scale.low + 1;
  if (y) {
    if (axis.log) scale.low /= 1.2;
    scale.high = axis.log ? scale.high * 1.2 : scale.low + (scale.high - scale.low) * 1.05;
  }
  scale.from = y ? kHeight - kBottom : kLeft;
  scale.to = y ? kTop : kWidth - kRight;
  return scale;
}

std::string Text(double x, double y, const char* anchor, const std::string& text,
                 const char* more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y,
                         anchor, more, EscapeXml(text));
}

std::string Open(const std::string& title, double height) {
  return absl::StrFormat(
             "<svg class=\"plot\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\" "
             "xmlns=\"http://www.w3.org/2000/svg\">\n",
             kWidth, height, EscapeXml(title)) +
         Text(kWidth / 2, 20, "middle", title, " class=\"title\"");
}

std::string AxisLabels(const std::string& x_label, const std::string& y_label) {
  const double middle = (kTop + kHeight - kBottom) / 2;
  return Text((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", x_label) +
         Text(18, middle, "middle", y_label,
              absl::StrFormat(" transform=\"rotate(-90 18 %.1f)\"", middle).c_str());
}

std::string Grid(const LinePlot& plot, const Scale& x, const Scale& y) {
  std::string svg;
  for (const double tick : PlotTicks(x.low, x.high, x.log)) {
    absl::StrAppendFormat(
        &svg, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x(tick),
        x(tick), y.from, y.to);
    svg += Text(x(tick), kHeight - kBottom + 16, "middle", PlotNumber(tick));
  }
  for (const double tick : PlotTicks(y.low, y.high, y.log)) {
    absl::StrAppendFormat(
        &svg, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x.from,
        x.to, y(tick), y(tick));
    svg += Text(kLeft - 6, y(tick) + 4, "end", PlotNumber(tick));
  }
  return svg + AxisLabels(plot.x.label, plot.y.label);
}

std::string Curve(const LinePlot& plot, const PlotSeries& series, const Scale& x, const Scale& y) {
  std::string svg, path;
  for (const PlotPoint& point : series.points) {
    if (!Drawn(plot, point)) continue;
    absl::StrAppendFormat(&path, "%s%.1f,%.1f", path.empty() ? "" : " ", x(point.x), y(point.y));
    absl::StrAppendFormat(
        &svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\"><title>%s</title></circle>\n",
        x(point.x), y(point.y), series.line ? "2" : "3.5", Colour(series.colour),
        EscapeXml(
            absl::StrFormat("%s: %s, %s", series.name, PlotNumber(point.x), PlotNumber(point.y))));
  }
  if (series.line && !path.empty()) {
    svg = absl::StrFormat("<polyline points=\"%s\" fill=\"none\" stroke=\"%s\"/>\n", path,
                          Colour(series.colour)) +
          svg;
  }
  return svg;
}

std::string LegendEntry(double y, uint32_t colour, bool line, const std::string& name) {
  const double x = kLeft + 10;
  return (line ? absl::StrFormat("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" "
                                 "stroke=\"%s\" stroke-width=\"2\"/>\n",
                                 x, x + 18, y - 4, y - 4, Colour(colour))
               : absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x + 9,
                                 y - 4, Colour(colour))) +
         Text(x + 24, y, "start", name);
}

std::string CellText(const MapPlot::Cell& cell, double x, double y, double width, double height) {
  const bool known = cell.category.has_value();
  std::string svg = absl::StrFormat(
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"%s><title>%s</title>"
      "</rect>\n",
      x, y, width, height, known ? Colour(*cell.category) : "none", known ? "" : " class=\"empty\"",
      EscapeXml(cell.title));
  if (cell.marked) {
    absl::StrAppendFormat(
        &svg, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s</title></circle>\n",
        x + width / 2, y + height / 2, EscapeXml(cell.title));
  }
  return svg;
}

}  // namespace

std::string EscapeXml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

std::string PlotNumber(double value) {
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size >= 1e6 || size < 1e-3) {
    const int exponent = static_cast<int>(std::floor(std::log10(size) + 1e-9));
    return absl::StrFormat("%.3ge%d", value / std::pow(10.0, exponent), exponent);
  }
  return size >= 1000 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.3g", value);
}

std::vector<double> PlotTicks(double low, double high, bool log) {
  std::vector<double> ticks;
  if (log) {
    const double decades = std::log10(high / low);
    // 1, 2, 5 of each decade while that is few enough, then every step-th decade.
    const bool fine = decades <= 3;
    const int step = fine ? 1 : static_cast<int>(std::ceil(decades / (kTickCountMax - 1)));
    for (int e = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, e) <= high;
         e += step) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * std::pow(10.0, e);
        const bool wanted = digit == 1 || fine;
        if (wanted && tick >= low && tick <= high) ticks.push_back(tick);
      }
    }
  } else {
    const double raw = (high - low) / 6;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    const double step = power * (raw / power > 5   ? 10
                                 : raw / power > 2 ? 5
                                 : raw / power > 1 ? 2
                                                   : 1);
    for (double tick = std::ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) {
      ticks.push_back(std::abs(tick) < step * 1e-9 ? 0 : tick);
    }
  }
  if (ticks.empty()) ticks.push_back(low);
  if (ticks.size() > kTickCountMax) ticks.resize(kTickCountMax);
  return ticks;
}

std::string RenderLinePlot(const LinePlot& plot) {
  const double height = kHeight + kLegendLine * double(plot.series.size());
  std::string svg = Open(plot.title, height);
  const bool any = std::any_of(plot.series.begin(), plot.series.end(), [&](const PlotSeries& s) {
    return std::any_of(s.points.begin(), s.points.end(),
                       [&](const PlotPoint& point) { return Drawn(plot, point); });
  });
  if (!any) {
    return svg + Text(kWidth / 2, kHeight / 2, "middle", "nothing was measured") + "</svg>\n";
  }
  const Scale x = ScaleOf(plot, false), y = ScaleOf(plot, true);
  svg += Grid(plot, x, y);
  double at = kHeight + 10;
  for (const PlotSeries& series : plot.series) {
    svg += Curve(plot, series, x, y);
    svg += LegendEntry(at, series.colour, series.line, series.name);
    at += kLegendLine;
  }
  return svg + "</svg>\n";
}

std::string RenderMapPlot(const MapPlot& plot) {
  const size_t columns = plot.x_values.size(), rows = plot.y_values.size();
  CKV_CHECK(plot.cells.size() == columns * rows);
  const size_t entries = plot.categories.size() + (plot.mark_meaning.empty() ? 0 : 1);
  std::string svg = Open(plot.title, kHeight + kLegendLine * double(entries));
  if (plot.cells.empty()) {
    return svg + Text(kWidth / 2, kHeight / 2, "middle", "nothing was measured") + "</svg>\n";
  }
  const double width = (kWidth - kLeft - kRight) / double(columns);
  const double height = (kHeight - kTop - kBottom) / double(rows);
  for (size_t r = 0; r < rows; ++r) {
    const double y = kHeight - kBottom - double(r + 1) * height;
    for (size_t c = 0; c < columns; ++c) {
      svg += CellText(plot.cells[r * columns + c], kLeft + double(c) * width, y, width, height);
    }
    svg += Text(kLeft - 6, y + height / 2 + 4, "end", plot.y_values[r]);
  }
  for (size_t c = 0; c < columns; ++c) {
    svg +=
        Text(kLeft + (double(c) + 0.5) * width, kHeight - kBottom + 16, "middle", plot.x_values[c]);
  }
  svg += AxisLabels(plot.x_label, plot.y_label);
  double at = kHeight + 10;
  for (uint32_t i = 0; i < plot.categories.size(); ++i, at += kLegendLine) {
    svg += LegendEntry(at, i, /*line=*/true, plot.categories[i]);
  }
  if (!plot.mark_meaning.empty()) {
    absl::StrAppendFormat(&svg, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n",
                          kLeft + 19, at - 4);
    svg += Text(kLeft + 34, at, "start", plot.mark_meaning);
  }
  return svg + "</svg>\n";
}

}  // namespace ckv
