#include "client/simulate/fleet_view.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace ckv {
namespace {

// ReplicaChooser's: client/holders is above this module.
constexpr double kRankingAgeS = 0.1;
constexpr double kEqualReplicas = 0.25;

}  // namespace

FleetView::FleetView(const FleetSpec* spec, const FleetPlacement* placement, uint32_t node)
    : spec_(*spec), placement_(*placement), node_(node) {
  input_.geometry = spec_.geometry;
  input_.query_rows = spec_.query_rows;
  input_.canonical = true;  // local rows keep their positions, and queries are rotated
  input_.here = spec_.costs.here;
  here_.SetKnown(spec_.geometry.widths(), spec_.costs.here);
}

FleetView::Peer& FleetView::PeerOf(uint32_t holder) {
  std::unique_ptr<Peer>& peer = peers_[holder];
  if (peer == nullptr) peer = std::make_unique<Peer>();
  return *peer;
}

Candidate FleetView::CandidateOf(uint32_t holder, double now_s) {
  const Peer& peer = PeerOf(holder);
  Candidate candidate;
  candidate.fabric = FabricConstants{
      .t_probe_us = spec_.costs.probe_us,
      .bandwidth_bytes_per_s = spec_.costs.nic_bytes_per_s,
      .fetch_bandwidth_bytes_per_s = peer.bandwidth.Get(),
  };
  candidate.compute.curve = spec_.costs.compute;
  candidate.in_flight = candidate.concurrent = peer.in_flight;
  candidate.queue_us = peer.queue.Us(InstantOf(now_s));
  return candidate;
}

void FleetView::RankGroup(const FleetPlacement::Group& group, Primitive primitive, double now_s,
                          Turns& turns) {
  const std::vector<uint32_t>& holders = placement_.holders_of_group[group.id];
  input_.tokens = uint64_t{spec_.chunk_tokens} * group.chunks.size();
  input_.candidates.clear();
  for (const uint32_t holder : holders) input_.candidates.push_back(CandidateOf(holder, now_s));
  std::array<RankedCandidate, kReplicaCountMax> ranked;
  const size_t count = RankCandidates(input_, primitive, ranked);
  const uint32_t before = turns.equal;
  turns.equal = 0;
  turns.ranked_s = now_s;
  double given_us = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < count; ++i) {
    const double cost_us = ranked[i].cost.total_us;
    if (cost_us > ranked[0].cost.total_us * (1 + kEqualReplicas)) continue;
    turns.equal |= 1u << ranked[i].index;
    turns.cost_us[ranked[i].index] = std::max(cost_us, 1e-3);
    if (before >> ranked[i].index & 1)
      given_us = std::min(given_us, turns.given_us[ranked[i].index]);
  }
  // A replica that has just become equal has no turns to catch up with.
  for (size_t i = 0; i < count; ++i) {
    if ((turns.equal & ~before) >> i & 1 && given_us < std::numeric_limits<double>::infinity())
      turns.given_us[i] = std::max(turns.given_us[i], given_us);
  }
}

uint32_t FleetView::Choose(const FleetPlacement::Group& group, Primitive primitive, double now_s) {
  const std::vector<uint32_t>& holders = placement_.holders_of_group[group.id];
  if (holders.size() == 1) return holders[0];
  Turns& turns = turns_[uint64_t{group.id} * kPrimitiveCount + static_cast<uint64_t>(primitive)];
  if (turns.ranked_s < 0 || now_s > turns.ranked_s + kRankingAgeS)
    RankGroup(group, primitive, now_s, turns);
  std::optional<size_t> next;
  for (size_t step = 0; step < holders.size(); ++step) {
    const size_t i = (node_ + step) % holders.size();  // the first differs between callers
    if ((turns.equal >> i & 1) == 0) continue;
    if (!next || turns.given_us[i] < turns.given_us[*next]) next = i;
  }
  turns.given_us[*next] += turns.cost_us[*next];
  return holders[*next];
}

FleetStepCost FleetView::CostOf(const std::vector<FleetPlacement::Group>& groups, double now_s) {
  size_t chunks = 0;
  for (const FleetPlacement::Group& group : groups) chunks += group.chunks.size();
  input_.tokens = input_.cache_room_tokens = uint64_t{spec_.chunk_tokens} * chunks;
  input_.candidates.clear();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const uint32_t holder : placement_.holders_of_group[groups[i].id]) {
      Candidate& one = input_.candidates.emplace_back(CandidateOf(holder, now_s));
      one.group = static_cast<uint32_t>(i);
      one.token_share = static_cast<double>(groups[i].chunks.size()) / static_cast<double>(chunks);
      // Requests in flight now do not predict later ones (Requester::Cost).
      one.in_flight = one.concurrent = 0;
    }
  }
  input_.here =
      WithAttendFactors(spec_.costs.here, here_.Factors(spec_.geometry.widths(), InstantOf(now_s)));
  const Decision step = Decide(input_);
  FleetStepCost cost;
  cost.known = step.cost(Primitive::kRoute).offered && step.cost(Primitive::kFetch).offered;
  const CostBreakdown& fetch = step.cost(Primitive::kFetch);
  cost.route_us = step.cost(Primitive::kRoute).total_us;
  cost.cached_us = fetch.compute_us;
  cost.prefetch_us = fetch.probe_us + fetch.transfer_us;
  if (const CostBreakdown& local = step.cost(Primitive::kLocal); local.offered)
    cost.prefill_us = local.prefill_us;
  return cost;
}

void FleetView::Replied(uint32_t holder, double queue_us, double now_s) {
  Peer& peer = PeerOf(holder);
  --peer.in_flight;
  peer.queue.Take(static_cast<uint32_t>(std::min(queue_us * 1e3, 4e9)), InstantOf(now_s));
}

void FleetView::AttendedHere(double rows, std::span<const SharedRun> runs, double us,
                             double now_s) {
  here_.Observe(spec_.geometry.widths(), rows, runs, us, InstantOf(now_s));
}

}  // namespace ckv
