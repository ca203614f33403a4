// Fits a ComputeCurve to measured calls, and evaluates it. FitComputeCurve, in order:
//   1. Separates samples of warm and cold rows, and fits a line over tokens for each number of
//      rows.
//   2. The slopes of warm lines are the anchors: the time of computing for each token.
//   3. FitFloor finds the floor of reading a row and the share of the shorter time that shows.
//   4. FitFixed divides the remainders at zero tokens into a base and a part for each row.
// KernelTime evaluates the curve with live factors, and takes the longer of computing and reading.

#include "client/cost/compute_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace ckv {
namespace {

// Steps of the shown share that the fit tries, and the root mean square of relative errors within
// which two fits are as good as each other. A machine repeats a call's time no better than that.
constexpr int kShareSteps = 20;
constexpr double kErrorTie = 0.005;

double Clean(double value) { return value > 0 ? value : 0; }
double Factor(double value) { return value > 0 ? value : 1; }
// 0 x infinity is 0 here.
double Times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }
double PerToken(double compute_us, const MemoryFloor& floor) {
  return OverFloor(0, compute_us, floor, 1).Us();
}

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

// Costs per token of the same query rows.
struct WarmAndCold {
  double warm_us = 0;
  double cold_us = 0;
};

// Returns the floor of one share with the smallest error. Below the floor's value the model is f +
// s x u. Above it the model is u + s x f. Both are lines in f, so the best f between two
// neighbouring costs solves one linear equation. The costs at or below `from` are on the first
// line.
double BestFloor(std::span<const WarmAndCold> points, double share, double from, double to) {
  double w = 0, wy = 0;
  for (const WarmAndCold& point : points) {
    const bool below = point.warm_us <= from;
    const double slope = (below ? 1 : share) / point.cold_us;
    const double rest = 1 - (below ? share : 1) * point.warm_us / point.cold_us;
    w += slope * slope;
    wy += slope * rest;
  }
  return std::clamp(w > 0 ? wy / w : from, from, to);
}

double RootMeanSquare(std::span<const WarmAndCold> points, const MemoryFloor& floor) {
  double sum = 0;
  for (const WarmAndCold& point : points) {
    const double error = PerToken(point.warm_us, floor) / point.cold_us - 1;
    sum += error * error;
  }
  return std::sqrt(sum / double(points.size()));
}

MemoryFloor BestOfShare(std::span<const WarmAndCold> points, double share) {
  std::vector<double> bounds = {0};
  for (const WarmAndCold& point : points) bounds.push_back(point.warm_us);
  std::sort(bounds.begin(), bounds.end());
  double highest = bounds.back();
  for (const WarmAndCold& point : points) highest = std::max(highest, point.cold_us);
  bounds.push_back(highest);
  MemoryFloor best = {.shown_share = share};
  double least = RootMeanSquare(points, best);
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const MemoryFloor floor = {BestFloor(points, share, bounds[i], bounds[i + 1]), share};
    const double error = RootMeanSquare(points, floor);
    if (!(error < least)) continue;
    least = error;
    best = floor;
  }
  return best;
}

MemoryFloor FitFloor(std::span<const WarmAndCold> points) {
  if (points.empty()) return {};
  std::array<MemoryFloor, kShareSteps + 1> fits;
  double least = std::numeric_limits<double>::infinity();
  for (int step = 0; step <= kShareSteps; ++step) {
    fits[step] = BestOfShare(points, double(step) / kShareSteps);
    least = std::min(least, RootMeanSquare(points, fits[step]));
  }
  int step = kShareSteps;
  while (step > 0 && RootMeanSquare(points, fits[step]) > least + kErrorTie) --step;
  return fits[step].us_per_token > 0 ? fits[step] : MemoryFloor();
}

// The remainders at no tokens: base and per_row.
void FitFixed(std::span<const std::pair<double, double>> left, ComputeCurve& curve) {
  if (left.empty()) return;
  const auto [few, few_us] = left.front();
  const auto [many, many_us] = left.back();
  if (many > few) curve.per_row_us = Clean((many_us - few_us) / (many - few));
  curve.base_us = Clean(few_us - few * curve.per_row_us);
}

// Samples by query rows and tokens, the smallest of each point: a disturbance only ever adds to a
// sample.
using Points = std::map<double, std::map<double, double>>;

struct Lines {
  std::map<double, double> us_per_token;        // by rows
  std::vector<std::pair<double, double>> left;  // rows, and microseconds of no tokens
};

Lines LinesOf(const Points& points) {
  Lines lines;
  for (const auto& [rows, us_of_tokens] : points) {
    if (lines.us_per_token.size() == ComputeCurve::kAnchorCountMax) break;
    const Line line = LineThrough(us_of_tokens);
    if (line.has_base) lines.left.emplace_back(rows, line.base_us);
    lines.us_per_token.emplace(rows, line.us_per_token);
  }
  return lines;
}

}  // namespace

KernelTime OverFloor(double fixed_us, double compute_us, const MemoryFloor& floor,
                     double tokens) noexcept {
  return {.fixed_us = Clean(fixed_us),
          .compute_us = Clean(compute_us),
          .memory_us = Times(Clean(tokens), Clean(floor.us_per_token)),
          .shown_share = std::min(Clean(floor.shown_share), 1.0)};
}

double KernelTime::Us(const LiveFactors& live) const noexcept {
  const double compute = Factor(live.compute);
  const double computing = Times(compute, compute_us);
  const double reading = Times(Factor(live.memory), memory_us);
  return Times(compute, fixed_us) + std::max(computing, reading) +
         Times(shown_share, std::min(computing, reading));
}

double KernelTime::MemoryPartUs(const LiveFactors& live) const noexcept {
  const double computing = Times(Factor(live.compute), compute_us);
  const double reading = Times(Factor(live.memory), memory_us);
  return reading > computing ? reading : Times(shown_share, reading);
}

KernelTime ComputeCurve::Time(double rows, double tokens) const noexcept {
  if (anchor_count == 0 || !(rows > 0)) return {};
  const double us_per_token = UsPerToken(std::span(anchors).first(anchor_count), rows);
  const double row_us = per_row_us > 0 ? per_row_us * rows : 0;
  return OverFloor(Clean(base_us) + row_us, Times(Clean(us_per_token), Clean(tokens)), floor,
                   tokens);
}

KernelTime ComputeCurve::Time(double rows, std::span<const SharedRun> runs) const noexcept {
  KernelTimeSum call(Time(rows, 0.0).fixed_us);
  for (const SharedRun& run : runs) call.Add(Time(run.rows, run.tokens));
  return call.Get();
}

void KernelTimeSum::Add(const KernelTime& run) noexcept {
  const bool computes = run.compute_us >= run.memory_us;
  (computes ? computes_ : reads_) = true;
  shown_share_ = run.shown_share;
  compute_us_ += run.compute_us;
  memory_us_ += run.memory_us;
  shown_compute_us_ += Times(computes ? 1 : run.shown_share, run.compute_us);
  shown_memory_us_ += Times(computes ? run.shown_share : 1, run.memory_us);
}

KernelTime KernelTimeSum::Get() const noexcept {
  if (computes_ && reads_) return {fixed_us_, shown_compute_us_, shown_memory_us_, 1};
  return {fixed_us_, compute_us_, memory_us_, shown_share_};
}

double RowsBoundByMemory(const ComputeCurve& curve) noexcept {
  const double floor_us = curve.floor.us_per_token;
  if (curve.empty() || !(floor_us > 0)) return 0;
  const std::span anchors = std::span(curve.anchors).first(curve.anchor_count);
  if (!(anchors.front().us_per_token <= floor_us)) return 0;
  for (size_t i = 1; i < anchors.size(); ++i) {
    const ComputeAnchor &a = anchors[i - 1], &b = anchors[i];
    if (b.us_per_token <= floor_us) continue;
    return a.rows +
           (b.rows - a.rows) * (floor_us - a.us_per_token) / (b.us_per_token - a.us_per_token);
  }
  const ComputeAnchor& last = anchors.back();
  return last.us_per_token > 0 ? last.rows * (floor_us / last.us_per_token)
                               : std::numeric_limits<double>::infinity();
}

ComputeCurve FitComputeCurve(std::span<const ComputeSample> samples) {
  Points warm, cold;
  for (const ComputeSample& sample : samples) {
    const bool finite =
        std::isfinite(sample.rows) && std::isfinite(sample.tokens) && std::isfinite(sample.us);
    if (!finite || sample.rows <= 0 || sample.tokens < 0 || sample.us < 0) continue;
    const auto [it, added] =
        (sample.cold ? cold : warm)[sample.rows].emplace(sample.tokens, sample.us);
    if (!added) it->second = std::min(it->second, sample.us);
  }
  if (warm.empty()) warm.swap(cold);
  const Lines computing = LinesOf(warm), reading = LinesOf(cold);
  ComputeCurve curve;
  double before = 0;
  std::vector<WarmAndCold> both;
  for (const auto& [rows, us_per_token] : computing.us_per_token) {
    before = std::max(before, us_per_token);
    curve.anchors[curve.anchor_count++] = {rows, before};
    const auto found = reading.us_per_token.find(rows);
    if (found != reading.us_per_token.end() && found->second > 0)
      both.push_back({before, found->second});
  }
  curve.floor = FitFloor(both);
  FitFixed(both.empty() || reading.left.empty() ? computing.left : reading.left, curve);
  return curve;
}

}  // namespace ckv
