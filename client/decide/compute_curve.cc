#include "client/decide/compute_curve.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace ckv {
namespace {

double Clean(double value) { return value > 0 ? value : 0; }

double UsPerToken(std::span<const ComputeAnchor> anchors, double rows) {
  const ComputeAnchor& first = anchors.front();
  const ComputeAnchor& last = anchors.back();
  if (rows <= first.rows) return first.us_per_token;
  if (rows >= last.rows) return last.us_per_token * (rows / last.rows);
  size_t right = 1;
  while (anchors[right].rows < rows) ++right;
  const ComputeAnchor& a = anchors[right - 1];
  const ComputeAnchor& b = anchors[right];
  return a.us_per_token + (b.us_per_token - a.us_per_token) * ((rows - a.rows) / (b.rows - a.rows));
}

// The line for one number of rows: microseconds per token, and the rest at zero tokens.
struct Line {
  double us_per_token = 0;
  double base_us = 0;
  bool has_base = false;
};

Line LineThrough(const std::map<double, double>& us_of_tokens) {
  const auto& [few, few_us] = *us_of_tokens.begin();
  const auto& [many, many_us] = *us_of_tokens.rbegin();
  if (few == many) return {.us_per_token = few > 0 ? few_us / few : 0, .base_us = 0};
  Line line = {.us_per_token = std::max(0.0, (many_us - few_us) / (many - few)),
               .base_us = 0,
               .has_base = true};
  line.base_us = std::max(0.0, few_us - few * line.us_per_token);
  return line;
}

}  // namespace

double ComputeCurve::Us(double rows, double tokens) const noexcept {
  if (anchor_count == 0 || !(rows > 0)) return 0;
  const double us_per_token = UsPerToken(std::span(anchors).first(anchor_count), rows);
  const double attended = Clean(tokens);
  // 0 x infinity is 0 here.
  const double row_us = per_row_us > 0 ? per_row_us * rows : 0;
  return Clean(base_us) + row_us + (us_per_token > 0 && attended > 0 ? us_per_token * attended : 0);
}

ComputeCurve FitComputeCurve(std::span<const ComputeSample> samples) {
  // The least of samples at the same point: what disturbs one only ever adds to it.
  std::map<double, std::map<double, double>> points;
  for (const ComputeSample& sample : samples) {
    const bool finite =
        std::isfinite(sample.rows) && std::isfinite(sample.tokens) && std::isfinite(sample.us);
    if (!finite || sample.rows <= 0 || sample.tokens < 0 || sample.us < 0) continue;
    const auto [it, added] = points[sample.rows].emplace(sample.tokens, sample.us);
    if (!added) it->second = std::min(it->second, sample.us);
  }
  ComputeCurve curve;
  std::vector<std::pair<double, double>> left;  // rows, and microseconds of no tokens
  for (const auto& [rows, us_of_tokens] : points) {
    if (curve.anchor_count == ComputeCurve::kAnchorCountMax) break;
    const Line line = LineThrough(us_of_tokens);
    if (line.has_base) left.emplace_back(rows, line.base_us);
    const double before =
        curve.anchor_count == 0 ? 0 : curve.anchors[curve.anchor_count - 1].us_per_token;
    curve.anchors[curve.anchor_count++] = {rows, std::max(before, line.us_per_token)};
  }
  if (left.empty()) return curve;
  const auto [few, few_us] = left.front();
  const auto [many, many_us] = left.back();
  if (many > few) curve.per_row_us = Clean((many_us - few_us) / (many - few));
  curve.base_us = Clean(few_us - few * curve.per_row_us);
  return curve;
}

}  // namespace ckv
