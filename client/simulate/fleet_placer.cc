#include "client/simulate/fleet_placer.h"

namespace ckv {

FleetPlacer::FleetPlacer(const FleetSpec* spec, const FabricTree* tree,
                         const FleetPlacement* placement)
    : spec_(*spec), tree_(*tree), placement_(*placement), cached_(spec->document_count()) {}

uint32_t FleetPlacer::Place(uint32_t document, const std::vector<FleetLoad>& loads) {
  const double tokens = static_cast<double>(spec_.document_chunks) * spec_.chunk_tokens;
  const ComputeCurve& curve = spec_.costs.here.attend;
  const double base_us = spec_.geometry.layers * curve.Us(spec_.query_rows, 0);
  const double request_us = spec_.geometry.layers * curve.Us(spec_.query_rows, tokens) - base_us;
  const uint32_t from =
      placement_.holders_of_group[placement_.groups_of_document[document][0].id].front();
  const uint32_t count = spec_.requester_count();
  turn_ = (turn_ + 1) % count;
  candidates_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t id = spec_.first_requester() + (turn_ + i) % count;
    const auto cached = cached_[document].find(id);
    RankCandidate& one = candidates_.emplace_back();
    if (cached != cached_[document].end())
      one.matched_tokens = static_cast<double>(cached->second) * spec_.chunk_tokens;
    one.free_bytes = 1e18;  // the requester evicts other rows
    one.queued = loads[id].waiting;
    one.batch = loads[id].running;
    one.batch_max = spec_.batch_max;
    one.iteration_base_us = base_us;
    one.iteration_request_us = request_us;
    one.path = {.tier = tree_.Tier(from, id),
                .bandwidth_bytes_per_s = spec_.costs.nic_bytes_per_s,
                .in_flight = static_cast<double>(loads[id].copies)};
  }
  const double cache_bytes = tokens * static_cast<double>(spec_.geometry.token_bytes());
  Rank({.tokens = tokens, .cache_bytes = cache_bytes}, candidates_, ranking_);
  return spec_.first_requester() + (turn_ + static_cast<uint32_t>(*ranking_.best)) % count;
}

void FleetPlacer::Changed(uint32_t node, uint32_t chunk, bool cached) {
  uint32_t& count = cached_[chunk / spec_.document_chunks][node];
  count = cached ? count + 1 : count - 1;
}

}  // namespace ckv
