// Orders the replicas of each group of chunks for one call, on the thread of its call context. In
// order: Look collects the candidates and what is known of each; KeepToOneTarget may restrict the
// call to one kernel target; Choose ranks a group's replicas by cost, failed ones last; NoteEquals
// lets those of about equal cost take turns. NextTurn counts the turn of the replica that was used.

#include "client/holders/replica_choice.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>
#include <optional>

#include "client/cost/live_window.h"

namespace ckv {

Candidate CandidateOf(const HolderPeer& peer, const PeerTable& peers, NetworkOracle* oracle,
                      const Geometry& geometry, Instant now) {
  Candidate candidate;
  candidate.fabric = peer.FabricFor(geometry);
  candidate.wire_share = peer.WireShareFor(geometry);
  candidate.burst_bytes = peer.BurstBytesFor(geometry);
  candidate.cold_exchange = peer.ColdExchangeFor(geometry);
  candidate.splice_share = peer.SpliceShareFor(geometry);
  candidate.compute = peer.ComputeFor(geometry);
  candidate.in_flight = peer.in_flight.Get();
  candidate.concurrent = candidate.in_flight;
  candidate.queue_us = peer.queue.Us(now);
  candidate.seat = peer.seat();
  if (oracle == nullptr) return candidate;
  candidate.path = oracle->PathTo(HostOfAddress(peer.View().member.control_address));
  if (!candidate.path) return candidate;
  // Every request under way to a holder of that tier shares it (arXiv:2606.03910 section V-C).
  for (const HolderView& other : peers.Views()) {
    const auto path = oracle->PathTo(HostOfAddress(other.member.control_address));
    if (path && path->tier == candidate.path->tier) candidate.path->in_flight += other.in_flight;
  }
  return candidate;
}
namespace {

constexpr Instant kGone = {kInstantMax.ns - 1};  // just before those that failed this call

// Whether every constant behind a cost of this primitive was measured or reported.
bool IsKnown(const RankedCandidate& ranked, const Candidate& candidate, Primitive primitive) {
  const ComputeConstants& compute = candidate.compute;
  return ranked.cost.why_not == nullptr &&
         (primitive != Primitive::kRoute || !compute.curve.empty() || compute.base_us > 0 ||
          compute.per_row_token_us > 0);
}

}  // namespace

void ReplicaChooser::Look(const Geometry& geometry, const ReplicaWork& work,
                          std::span<HolderLink* const> links, const PeerTable& peers,
                          const LaneShape& lane_shape, NetworkOracle* oracle, Instant now,
                          std::span<const HolderPeer* const> tried) {
  primitive_ = work.primitive;
  input_.geometry = geometry;
  input_.query_rows = work.query_rows;
  input_.selected = work.selected;
  input_.f32_partials = work.wire == PartialDtype::kF32;
  input_.lane_shape = lane_shape;
  now_ = now;
  candidates_.clear();
  avoided_until_.clear();
  targets_.clear();
  peers_.clear();
  at_elbow_.clear();
  wanted_ = KernelTargetId::kUnknown;
  for (HolderLink* const link : links) {
    HolderPeer& peer = link->peer();
    peers_.push_back(&peer);
    candidates_.push_back(CandidateOf(peer, peers, oracle, geometry, now));
    const bool failed = std::find(tried.begin(), tried.end(), &peer) != tried.end();
    avoided_until_.push_back(failed ? kInstantMax : peer.gone() ? kGone : peer.avoidance.until());
    targets_.push_back(peer.model.target());
    const uint32_t elbow = primitive_ == Primitive::kRoute ? peer.RouteElbowFor(geometry) : 0;
    at_elbow_.push_back(elbow > 0 && peer.in_flight.Get() >= elbow ? 1 : 0);
  }
}

void ReplicaChooser::KeepToOneTarget(std::span<const ReplicaGroup> groups, KernelTargetId mine) {
  struct Standing {
    uint64_t tokens = 0;  // that its holders have
    bool is_mine = false;
    uint64_t copies = 0;  // tokens, once for each holder
    KernelTargetId target = KernelTargetId::kUnknown;

    auto operator<=>(const Standing&) const = default;
  };
  Standing best;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const KernelTargetId target = targets_[i];
    const std::span<const KernelTargetId> seen(targets_.data(), i);
    if (target == KernelTargetId::kUnknown || std::ranges::count(seen, target) > 0) continue;
    Standing standing = {.is_mine = target == mine, .target = target};
    for (const ReplicaGroup& group : groups) {
      const uint64_t holders = CountOf(group, target);
      standing.tokens += holders > 0 ? group.token_count : 0;
      standing.copies += holders * group.token_count;
    }
    best = std::max(best, standing);
  }
  wanted_ = best.target;
}

uint64_t ReplicaChooser::CountOf(const ReplicaGroup& group, KernelTargetId target) const {
  return static_cast<uint64_t>(std::count_if(
      group.links.begin(), group.links.end(),
      [&](uint32_t link) { return targets_[link] == target && avoided_until_[link] <= now_; }));
}

void ReplicaChooser::Choose(ReplicaGroup& group) {
  input_.tokens = group.token_count;
  input_.candidates.clear();
  for (const uint32_t link : group.links) input_.candidates.push_back(candidates_[link]);
  std::array<RankedCandidate, kReplicaCountMax> all;
  const size_t count = RankCandidates(input_, primitive_, all);
  // The replicas that may be queried, the cheapest first.
  std::array<RankedCandidate, kReplicaCountMax> ranked;
  size_t may_be_tried = 0;
  uint32_t soonest = 0;  // whose failure is the longest ago, about
  const bool wanted_only = wanted_ != KernelTargetId::kUnknown && CountOf(group, wanted_) > 0;
  for (const RankedCandidate& next : std::span(all).first(count)) {
    const Instant until = avoided_until_[group.links[next.index]];
    if (until < avoided_until_[group.links[soonest]]) soonest = next.index;
    if (until > now_ || (wanted_only && targets_[group.links[next.index]] != wanted_)) continue;
    ranked[may_be_tried++] = next;
  }
  ReplicaTurns& turns = group.turns[size_t(primitive_)];
  if (may_be_tried == 0) {
    turns.equal = 0;
    group.chosen[size_t(primitive_)] = soonest;
    return;
  }
  NoteEquals(group, std::span(ranked).first(may_be_tried));
  NextTurn(group, primitive_);
}

void ReplicaChooser::NoteEquals(ReplicaGroup& group, std::span<const RankedCandidate> ranked) {
  const auto is_known = [&](const RankedCandidate& one) {
    return IsKnown(one, candidates_[group.links[one.index]], primitive_);
  };
  const auto best = std::find_if(ranked.begin(), ranked.end(), is_known);
  // If no cost is fully known, the costs can still be compared by their known parts.
  const double least_us = best == ranked.end() ? ranked.front().cost.total_us : best->cost.total_us;
  ReplicaTurns& turns = group.turns[size_t(primitive_)];
  const uint8_t before = turns.equal;
  turns.equal = 0;
  uint8_t below_elbow = 0;
  double given_us = std::numeric_limits<double>::infinity();  // the least of those that stay
  for (const RankedCandidate& one : ranked) {
    const bool comparable = best == ranked.end() ? one.cost.why_not == nullptr : is_known(one);
    const double cost_us = comparable ? one.cost.total_us : least_us;
    if (cost_us > least_us * (1 + kEqualMax)) {
      HolderPeer& peer = *peers_[group.links[one.index]];
      if (cost_us > least_us * DoubtCount::kFactor && peer.queue.SilentFor(now_) > kSilentMax)
        peer.DoubtUnqueried(input_.geometry.widths());
      continue;
    }
    const auto bit = static_cast<uint8_t>(1u << one.index);
    turns.equal |= bit;
    if (at_elbow_[group.links[one.index]] == 0) below_elbow |= bit;
    // A zero cost would take all turns.
    turns.cost_us[one.index] = static_cast<float>(std::max(cost_us, 1e-3));
    if ((before & bit) != 0) given_us = std::min(given_us, turns.given_us[one.index]);
  }
  if (below_elbow != 0) turns.equal = below_elbow;
  for (uint32_t i = 0; i < group.links.size(); ++i) {
    // A replica that has just become equal has no turns to catch up with.
    if ((turns.equal & ~before) >> i & 1 && std::isfinite(given_us))
      turns.given_us[i] = std::max(turns.given_us[i], given_us);
  }
}

void ReplicaChooser::NextTurn(ReplicaGroup& group, Primitive primitive) {
  ReplicaTurns& turns = group.turns[size_t(primitive)];
  const auto count = static_cast<uint32_t>(group.links.size());
  std::optional<uint32_t> next;
  for (uint32_t step = 0; step < count; ++step) {
    const uint32_t i = (group.first + step) % count;
    if ((turns.equal >> i & 1) == 0) continue;
    if (!next || turns.given_us[i] < turns.given_us[*next]) next = i;
  }
  if (!next) return;
  turns.given_us[*next] += turns.cost_us[*next];
  group.chosen[size_t(primitive)] = *next;
}

}  // namespace ckv
