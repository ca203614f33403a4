// What the cost model and the predicate say, with the constants of a profile.

#include <algorithm>

#include "client/characterize/run.h"

namespace ckv {
namespace {

const LaneProfile* LaneOf(const Profile& profile, const std::string& fabric) {
  const auto found =
      std::find_if(profile.lanes.begin(), profile.lanes.end(),
                   [&fabric](const LaneProfile& lane) { return lane.fabric == fabric; });
  return found == profile.lanes.end() ? nullptr : &*found;
}

}  // namespace

double PredictRouteUs(const Profile& profile, const Geometry& geometry, const std::string& fabric,
                      uint32_t query_rows, uint64_t tokens) {
  const LaneProfile* lane = LaneOf(profile, fabric);
  if (lane == nullptr) return 0;
  const double bytes = double(query_rows) * (geometry.query_row_bytes() +
                                             double(geometry.partial_row_bytes(/*f32=*/false)));
  return lane->constants.t_probe_us + bytes / lane->constants.bandwidth_bytes_per_s * 1e6 +
         lane->compute.Us(query_rows, double(tokens)) + query_rows * profile.here.merge_per_row_us;
}

std::optional<Primitive> PredictChoice(const Profile& profile, const Geometry& geometry,
                                       const std::string& fabric, uint32_t query_rows,
                                       uint64_t tokens, uint32_t steps) {
  const LaneProfile* lane = LaneOf(profile, fabric);
  if (lane == nullptr) return std::nullopt;
  const double rounds = double(steps) * geometry.layers;
  const double chunk_rows = double(tokens) * geometry.layers;
  const double here = rounds * profile.here_compute.Us(query_rows, double(tokens));
  const double route = rounds * PredictRouteUs(profile, geometry, fabric, query_rows, tokens);
  const double fetch = lane->constants.t_probe_us +
                       chunk_rows * geometry.row_bytes() / lane->pull_bandwidth_bytes_per_s * 1e6 +
                       chunk_rows * profile.here.splice_per_token_layer_us + here;
  Primitive choice = fetch < route ? Primitive::kFetch : Primitive::kRoute;
  if (profile.here.prefill_per_token_layer_us) {
    const double local = chunk_rows * *profile.here.prefill_per_token_layer_us + here;
    if (local < std::min(route, fetch)) choice = Primitive::kLocal;
  }
  return choice;
}

}  // namespace ckv
