#include "client/holders/replica_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

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

void ReplicaChooser::KeepToOneTarget(std::span<const ReplicaGroup> groups) {
  uint64_t most = 0;
  for (const KernelTargetId target : targets_) {
    if (target == KernelTargetId::kUnknown) continue;
    uint64_t tokens = 0;
    const KernelTargetId before = std::exchange(wanted_, target);
    for (const ReplicaGroup& group : groups) tokens += HasWanted(group) ? group.token_count : 0;
    if (tokens > most || (tokens == most && target > before)) {
      most = tokens;
    } else {
      wanted_ = before;
    }
  }
}

bool ReplicaChooser::HasWanted(const ReplicaGroup& group) const {
  return wanted_ != KernelTargetId::kUnknown &&
         std::any_of(group.links.begin(), group.links.end(), [this](uint32_t link) {
           return targets_[link] == wanted_ && avoided_until_[link] <= now_;
         });
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
  const bool wanted_only = HasWanted(group);
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
