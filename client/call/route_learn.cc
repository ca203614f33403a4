#include "client/call/route_learn.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>

#include "client/cost/cost_model.h"

namespace ckv {

RouteLearner::RouteLearner(const PlannedCall* planned, const FramePoster* frames,
                           const LocalAttend* local, Exchange* exchange, Clock* clock,
                           LiveCalls* calls, CallCounters* counters)
    : planned_(*planned),
      frames_(*frames),
      local_(*local),
      exchange_(*exchange),
      clock_(clock),
      calls_(calls),
      counters_(counters) {}

void RouteLearner::Begin() { rounds_.assign(planned_.peers.size(), Round{}); }

// Whether the time from a post to its reply is the holder's. It is not if this thread did something
// else meanwhile.
bool RouteLearner::Timed() const {
  return (planned_.call.polled_at_once || planned_.call.prompt) && !local_.attends_any();
}

void RouteLearner::Observe(const Exchange::Reply& reply) {
  HolderPeer& peer = exchange_.link(reply.peer_index).peer();
  const FabricKind fabric = exchange_.link(reply.peer_index).lane().kind();
  const uint64_t bytes = frames_.bytes(reply.tag) + reply.bytes.size();
  const Instant now = clock_->Now();
  const PlannedFrame& planned = planned_.plan.frames()[reply.tag];
  const double kernel_us = planned.index_count == 0 ? ObserveKernel(peer, reply) : 0;
  const double queue_us = peer.queue.Us(now);
  peer.queue.Take(reply.header.queue_ns, now);
  // A lane over a fabric that is no longer the chosen one reveals nothing about the chosen one.
  const bool chosen = fabric == peer.fabric_kind.load(std::memory_order_relaxed);
  const Duration took = now - reply.posted;
  const PlannedPeer& planned_peer = planned_.peers[reply.peer_index];
  const std::optional<FabricConstants> known = peer.fabric.Get();
  if (kernel_us > 0 && chosen && known && planned_peer.frame_end - planned_peer.frame_begin == 1 &&
      peer.in_flight.LastWasAlone()) {
    // RouteRound of one frame.
    const double exchange_us =
        known->t_probe_us + double(bytes) / known->bandwidth_bytes_per_s * 1e6;
    Round& round = rounds_[reply.peer_index];
    round.expected_us = exchange_us + kernel_us + queue_us;
    round.busy_us = BusyUs(peer.seat(), kernel_us, exchange_us);
    if (Timed()) round.took_us = double(took.count()) / 1e3;
  }
  if (!Timed()) return;
  const Duration on_lane =
      took - std::chrono::nanoseconds(uint64_t{reply.header.compute_ns} + reply.header.queue_ns);
  if (counters_ != nullptr && !planned_.call.is_trial)
    counters_->lanes[static_cast<size_t>(fabric)].Add(on_lane);
  if (chosen) peer.ObserveLane(bytes, double(on_lane.count()) / 1e3);
}

// Returns the kernel time that the holder's model expected, or 0.
double RouteLearner::ObserveKernel(HolderPeer& peer, const Exchange::Reply& reply) {
  const RouteCall& call = planned_.call;
  const AttendPlan& plan = planned_.plan;
  const PlannedFrame& planned = plan.frames()[reply.tag];
  uint64_t row_tokens = 0;
  for (const PlannedPart& part : plan.PartsOf(planned)) {
    const PlannedSplit& split = plan.splits()[part.split];
    const PlannedUnit& unit = plan.units()[split.unit];
    const std::span<const ContextChunk> chunks = call.segments[unit.segment].context->chunks();
    uint64_t tokens = 0;
    for (uint32_t left = split.node_count, n = split.first_node; left > 0;
         --left, n = plan.nodes()[n].next) {
      const PlannedNode& node = plan.nodes()[n];
      for (uint32_t i = node.attended_begin; i < node.attended_end; ++i)
        tokens += chunks[plan.attended()[i].context_index].token_count;
    }
    row_tokens += tokens * part.row_count;
  }
  return peer.ObserveAttend({.geometry = call.geometry(),
                             .fabric = exchange_.link(reply.peer_index).lane().kind(),
                             .rows = planned.row_count,
                             .tokens = row_tokens / planned.row_count,
                             .compute_ns = reply.header.compute_ns,
                             .batch_share = reply.header.batch_share});
}

// Holders of one host share its processors, so each waits for all of them.
void RouteLearner::JudgeRounds() {
  HostLoads loads;
  bool any = false;
  for (uint32_t peer_index = 0; peer_index < rounds_.size(); ++peer_index) {
    if (!(rounds_[peer_index].took_us > 0)) continue;
    loads.Add(exchange_.link(peer_index).peer().seat(), rounds_[peer_index].busy_us);
    any = true;
  }
  if (!any) return;
  for (uint32_t peer_index = 0; peer_index < rounds_.size(); ++peer_index) {
    const Round& round = rounds_[peer_index];
    if (!(round.took_us > 0)) continue;
    HolderPeer& peer = exchange_.link(peer_index).peer();
    peer.model.JudgeRound(std::max(round.expected_us, loads.Us(peer.seat())), round.took_us);
  }
}

void RouteLearner::JudgeCall(Duration took) {
  const RouteCall& call = planned_.call;
  if (calls_ == nullptr || call.is_trial) return;
  // A prompt ticket's thread may attend rows of other calls meanwhile.
  if (!call.polled_at_once && !(call.prompt && !local_.attends_any())) return;
  const double here_us = local_.expected_us();
  if (local_.attends_any() && !(here_us > 0)) return;
  CallTime time(here_us);
  bool requested = false;
  for (uint32_t peer_index = 0; peer_index < rounds_.size(); ++peer_index) {
    const Round& round = rounds_[peer_index];
    if (!frames_.requested(peer_index)) continue;
    if (!(round.expected_us > 0)) return;
    time.Add(exchange_.link(peer_index).peer().seat(), round.expected_us, round.busy_us);
    requested = true;
  }
  (requested ? calls_->routed : calls_->cached).Observe(time.Us(), double(took.count()) / 1e3);
}

}  // namespace ckv
