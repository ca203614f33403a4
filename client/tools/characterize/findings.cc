// Judges the cost model by the samples of a run; pure arithmetic. FindingsOf, in order:
//   each route sample      adds the model's error to its fabric
//   each number of steps   PointOf gets the times of route, fetch and local at that point, and the
//                          best of them. `chooser` adds the model's choice
//   each fabric            Average and Judge: the mean error, the time lost by wrong choices, and
//                          the share of right ones where the times differ clearly

#include "client/tools/characterize/findings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/characterize/calibrate.h"

namespace ckv {
namespace {

void AddError(double model_us, double us, ModelError& error) {
  if (us <= 0 || model_us <= 0) return;
  error.mape += std::abs(model_us - us) / us;
  ++error.count;
}

void AddErrors(const Sample& sample, ModelError& all, ModelError& beyond) {
  AddError(sample.model_us, sample.us, all);
  if (sample.kernel_us > 0 && sample.model_kernel_us > 0) {
    AddError(sample.model_us - sample.model_kernel_us, sample.us - sample.kernel_us, beyond);
  }
}

void Average(ModelError& error) {
  if (error.count > 0) error.mape /= error.count;
}

// A cost of prefill that was given has no error, which is not the same as an unknown one.
bool HasError(const Sample& sample) { return sample.error_us > 0 || sample.runs >= kErrorRunsMin; }

// The measured time of each primitive at the point of a route sample.
GridPoint PointOf(std::span<const Sample> samples, const Sample& route, uint32_t layers,
                  uint32_t steps) {
  const SampleKey& key = route.key;
  GridPoint point = {.fabric = key.fabric,
                     .query_rows = key.query_rows,
                     .tokens = key.tokens,
                     .steps = steps,
                     .us = {},
                     .error_us = {},
                     .best = Primitive::kRoute,
                     .chosen = {}};
  const double rounds = double(steps) * layers;
  point.us[size_t(Primitive::kRoute)] = rounds * route.us;
  const Sample* here = FindSample(samples, {Sweep::kHere, "", key.query_rows, key.tokens, 1});
  const Sample* fetch = FindSample(samples, {Sweep::kFetch, key.fabric, 0, key.tokens, 1});
  const Sample* local = FindSample(samples, {Sweep::kLocal, "", 0, key.tokens, 1});
  if (HasError(route)) point.error_us[size_t(Primitive::kRoute)] = rounds * route.error_us;
  for (const auto& [primitive, first] :
       {std::pair(Primitive::kFetch, fetch), std::pair(Primitive::kLocal, local)}) {
    if (here == nullptr || first == nullptr) continue;
    point.us[size_t(primitive)] = first->us + rounds * here->us;
    if (HasError(*first) && HasError(*here))
      point.error_us[size_t(primitive)] = std::hypot(first->error_us, rounds * here->error_us);
  }
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    if (point.us[i] && *point.us[i] < *point.us[size_t(point.best)])
      point.best = static_cast<Primitive>(i);
  }
  return point;
}

void Judge(FabricFindings& findings) {
  double chosen_us = 0, best_us = 0;
  uint32_t right = 0, resolved_right = 0;
  for (const GridPoint& point : findings.grid) {
    best_us += *point.us[size_t(point.best)];
    chosen_us += *point.us[size_t(point.best)] * point.regret();
    if (!point.clear()) continue;
    ++findings.clear_count;
    const uint32_t is_right = point.chosen == point.best ? 1 : 0;
    right += is_right;
    if (!point.resolved()) continue;
    ++findings.resolved_count;
    resolved_right += is_right;
  }
  if (best_us > 0) findings.regret = chosen_us / best_us - 1;
  if (findings.clear_count > 0) findings.right_share = double(right) / findings.clear_count;
  if (findings.resolved_count > 0)
    findings.resolved_right_share = double(resolved_right) / findings.resolved_count;
}

}  // namespace

double GridPoint::regret() const {
  if (!chosen || !us[size_t(*chosen)] || *us[size_t(best)] <= 0) return 1;
  return *us[size_t(*chosen)] / *us[size_t(best)];
}

bool GridPoint::clear() const {
  const double limit = *us[size_t(best)] * (1 + kTieBand);
  uint32_t near = 0;
  for (const std::optional<double>& time : us) near += time && *time <= limit ? 1 : 0;
  return near == 1;
}

bool GridPoint::resolved() const {
  const double limit = *us[size_t(best)] * (1 + kTieBand);
  const std::optional<double> best_error_us = error_us[size_t(best)];
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    if (i == size_t(best) || !us[i]) continue;
    if (!error_us[i] || !best_error_us) return false;
    const double error = std::hypot(*error_us[i], (1 + kTieBand) * *best_error_us);
    if (*us[i] - limit <= kErrorCount * error) return false;
  }
  return true;
}

std::vector<FabricFindings> FindingsOf(std::span<const Sample> samples, uint32_t layers,
                                       std::span<const uint32_t> steps, Chooser chooser) {
  std::vector<FabricFindings> all;
  for (const Sample& sample : samples) {
    if (sample.key.sweep != Sweep::kRoute) continue;
    auto found = std::find_if(all.begin(), all.end(), [&](const FabricFindings& findings) {
      return findings.fabric == sample.key.fabric;
    });
    if (found == all.end()) {
      found = all.insert(all.end(), FabricFindings());
      found->fabric = sample.key.fabric;
    }
    AddErrors(sample, found->all, found->beyond);
    if (sample.key.query_rows >= kLargeQueryRows)
      AddErrors(sample, found->large, found->beyond_large);
    for (const uint32_t count : steps) {
      GridPoint point = PointOf(samples, sample, layers, count);
      point.chosen = chooser(point.fabric, point.query_rows, point.tokens, count);
      found->grid.push_back(std::move(point));
    }
  }
  for (FabricFindings& findings : all) {
    Average(findings.all);
    Average(findings.large);
    Average(findings.beyond);
    Average(findings.beyond_large);
    Judge(findings);
  }
  return all;
}

std::vector<KernelCurve> KernelCurvesOf(const Profile& profile) {
  std::vector<KernelCurve> kernels = {{"here", profile.here.attend}};
  for (const LaneProfile& lane : profile.lanes)
    kernels.push_back({absl::StrFormat("%s over %s", lane.holder, lane.fabric), lane.compute});
  return kernels;
}

std::string DescribeFloor(const ComputeCurve& curve) {
  const double floor_ns = 1e3 * curve.floor.us_per_token;
  if (!(floor_ns > 0)) return "no floor was measured";
  const double rows = RowsBoundByMemory(curve);
  const std::string floor = absl::StrFormat("reading a row takes %.3g ns", floor_ns);
  if (std::isinf(rows)) return floor + "; bound by memory at any number of query rows";
  if (rows >= 1) {
    return floor + absl::StrFormat("; bound by memory up to %.0f query row%s", std::floor(rows),
                                   rows < 2 ? "" : "s");
  }
  return floor + absl::StrFormat(
                     ", and computing takes longer from the first query row on; %.0f %% of the "
                     "shorter shows",
                     100 * curve.floor.shown_share);
}

}  // namespace ckv
