#include "client/holders/replica_choice.h"

#include <algorithm>
#include <compare>
#include <optional>

#include "proto/corpus.h"

namespace ckv {

Candidate CandidateOf(const HolderPeer& peer, const PeerTable& peers, NetworkOracle* oracle,
                      const Geometry& geometry) {
  Candidate candidate;
  candidate.fabric = peer.FabricFor(geometry);
  candidate.wire_share = peer.WireShareFor(geometry);
  candidate.splice_share = peer.SpliceShareFor(geometry);
  candidate.compute = peer.ComputeFor(geometry);
  candidate.in_flight = peer.in_flight.Get();
  candidate.concurrent = candidate.in_flight;
  candidate.queue_us = peer.queue_ns.load(std::memory_order_relaxed) / 1e3;
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
  wanted_ = KernelTargetId::kUnknown;
  for (const HolderLink* link : links) {
    const HolderPeer& peer = link->peer();
    candidates_.push_back(CandidateOf(peer, peers, oracle, geometry));
    const bool failed = std::find(tried.begin(), tried.end(), &peer) != tried.end();
    avoided_until_.push_back(failed ? kInstantMax : peer.gone() ? kGone : peer.avoided_until());
    targets_.push_back(peer.model.target());
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
    const bool seen =
        std::find(targets_.begin(), targets_.begin() + i, target) != targets_.begin() + i;
    if (target == KernelTargetId::kUnknown || seen) continue;
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
  std::array<RankedCandidate, kReplicaCountMax> ranked;
  const size_t count = RankCandidates(input_, primitive_, ranked);
  uint32_t& chosen = group.chosen[size_t(primitive_)];
  std::optional<RankedCandidate> best, current;
  uint32_t soonest = 0;  // whose failure is the longest ago, about
  const bool wanted_only = wanted_ != KernelTargetId::kUnknown && CountOf(group, wanted_) > 0;
  for (const RankedCandidate& next : std::span(ranked).first(count)) {
    const Instant until = avoided_until_[group.links[next.index]];
    if (until < avoided_until_[group.links[soonest]]) soonest = next.index;
    if (until > now_ || (wanted_only && targets_[group.links[next.index]] != wanted_)) continue;
    if (!best) best = next;
    if (next.index == chosen) current = next;
  }
  if (!best) {
    chosen = soonest;
    return;
  }
  if (current && current->cost.why_not == nullptr &&
      best->cost.total_us >= current->cost.total_us * (1 - kGainMin)) {
    return;
  }
  chosen = best->index;
}

}  // namespace ckv
