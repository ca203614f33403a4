// Predicts with the constants of a profile what the cost model and the predicate say.

#include <algorithm>
#include <cmath>

#include "client/tools/characterize/run.h"

namespace ckv {
namespace {

const LaneProfile* LaneOf(const Profile& profile, const std::string& fabric) {
  const auto found =
      std::find_if(profile.lanes.begin(), profile.lanes.end(),
                   [&fabric](const LaneProfile& lane) { return lane.fabric == fabric; });
  return found == profile.lanes.end() ? nullptr : &*found;
}

DecisionInput InputOf(const Profile& profile, const LaneProfile& lane, const Geometry& geometry,
                      uint32_t query_rows, uint64_t tokens, uint32_t steps) {
  DecisionInput input;
  input.geometry = geometry;
  input.tokens = tokens;
  input.query_rows = query_rows;
  input.steps = steps;
  input.cache_room_tokens = tokens;
  input.here = profile.here;
  Candidate candidate;
  candidate.fabric = lane.constants;
  candidate.wire_share = lane.wire_share;
  candidate.burst_bytes = lane.burst_bytes;
  candidate.cold_exchange = lane.cold_exchange;
  candidate.splice_share = lane.splice_share;
  candidate.compute.curve = lane.compute;
  input.candidates.push_back(candidate);
  return input;
}

}  // namespace

RoutePrediction PredictRoute(const Profile& profile, const Geometry& geometry,
                             const std::string& fabric, uint32_t query_rows, uint64_t tokens) {
  const LaneProfile* lane = LaneOf(profile, fabric);
  if (lane == nullptr) return {};
  const Decision decision =
      Decide(InputOf(profile, *lane, geometry, query_rows, tokens, /*steps=*/1));
  const CostBreakdown& route = decision.cost(Primitive::kRoute);
  if (!route.offered) return {};
  return {.us = route.total_us / geometry.layers,
          .kernel_us = lane->compute.Us(query_rows, double(tokens))};
}

std::vector<BandwidthPoint> SweepBandwidth(const Profile& profile, const Geometry& geometry,
                                           const std::string& fabric, uint32_t query_rows,
                                           uint64_t tokens) {
  constexpr double kLowest = 0.2e9, kHighest = 1e12;
  constexpr double kPointsOfDecade = 10;
  std::vector<BandwidthPoint> points;
  const LaneProfile* lane = LaneOf(profile, fabric);
  if (lane == nullptr) return points;
  const double count = std::ceil(std::log10(kHighest / kLowest) * kPointsOfDecade);
  for (double i = 0; i <= count; ++i) {
    BandwidthPoint point;
    point.bandwidth_bytes_per_s = kLowest * std::pow(kHighest / kLowest, i / count);
    LaneProfile changed = *lane;
    changed.constants.bandwidth_bytes_per_s = point.bandwidth_bytes_per_s;
    changed.constants.fetch_bandwidth_bytes_per_s = point.bandwidth_bytes_per_s;
    const Decision decision =
        Decide(InputOf(profile, changed, geometry, query_rows, tokens, /*steps=*/1));
    for (size_t way = 0; way < kPrimitiveCount; ++way) {
      if (decision.costs[way].offered) point.us[way] = decision.costs[way].total_us;
    }
    points.push_back(point);
  }
  return points;
}

std::optional<Primitive> PredictChoice(const Profile& profile, const Geometry& geometry,
                                       const std::string& fabric, uint32_t query_rows,
                                       uint64_t tokens, uint32_t steps) {
  const LaneProfile* lane = LaneOf(profile, fabric);
  if (lane == nullptr) return std::nullopt;
  return Decide(InputOf(profile, *lane, geometry, query_rows, tokens, steps)).choice;
}

}  // namespace ckv
