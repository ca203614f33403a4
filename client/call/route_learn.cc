// The learning part of the router: what answers reveal about holders (client/learn/live_model.h).

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>

#include "client/call/route.h"
#include "client/decide/cost_model.h"

namespace ckv {

// Reports the cost of an answer to its holder's cost model.
void Router::Learn(const PlannedFrame& planned, const Frame& frame, const Exchange::Reply& reply) {
  HolderPeer& peer = exchange_.link(reply.line).peer();
  const FabricKind fabric = exchange_.link(reply.line).lane().kind();
  const uint64_t bytes = frame.bytes + reply.bytes.size();
  const Instant now = clock_->Now();
  const double kernel_us = planned.index_count == 0 ? ObserveKernel(peer, planned, reply) : 0;
  const double queue_us = peer.queue.Us(now);
  peer.queue.Take(reply.header.queue_ns, now);
  // A lane over a fabric that is no longer the chosen one reveals nothing about the chosen one.
  const bool chosen = fabric == peer.fabric_kind.load(std::memory_order_relaxed);
  const Duration took = now - reply.posted;
  const PlannedLine& line = lines_[reply.line];
  const std::optional<FabricConstants> known = peer.fabric.Get();
  if (kernel_us > 0 && chosen && known && line.frame_end - line.frame_begin == 1 &&
      peer.in_flight.LastWasAlone()) {
    // RouteRound of one frame.
    const double exchange_us =
        known->t_probe_us + double(bytes) / known->bandwidth_bytes_per_s * 1e6;
    Flow& flow = flows_[reply.line];
    flow.expected_us = exchange_us + kernel_us + queue_us;
    flow.busy_us = BusyUs(peer.seat(), kernel_us, exchange_us);
    if (Timed()) flow.took_us = double(took.count()) / 1e3;
  }
  if (!Timed()) return;
  const Duration on_lane =
      took - std::chrono::nanoseconds(uint64_t{reply.header.compute_ns} + reply.header.queue_ns);
  if (counters_ != nullptr && !call_->is_trial)
    counters_->lanes[static_cast<size_t>(fabric)].Add(on_lane);
  if (chosen) peer.ObserveLane(bytes, double(on_lane.count()) / 1e3);
}

// Returns the kernel time that the holder's model expected, or 0.
double Router::ObserveKernel(HolderPeer& peer, const PlannedFrame& planned,
                             const Exchange::Reply& reply) {
  uint64_t row_tokens = 0;
  for (const PlannedPart& part : plan_.PartsOf(planned)) {
    const PlannedShare& share = plan_.shares()[part.share];
    const PlannedUnit& unit = plan_.units()[share.unit];
    const std::span<const ContextChunk> chunks = call_->segments[unit.segment].context->chunks();
    uint64_t tokens = 0;
    for (uint32_t left = share.node_count, n = share.first_node; left > 0;
         --left, n = plan_.nodes()[n].next) {
      const PlannedNode& node = plan_.nodes()[n];
      for (uint32_t i = node.piece_begin; i < node.piece_end; ++i)
        tokens += chunks[plan_.pieces()[i].chunk].token_count;
    }
    row_tokens += tokens * part.row_count;
  }
  return peer.ObserveAttend({.geometry = call_->geometry(),
                             .fabric = exchange_.link(reply.line).lane().kind(),
                             .rows = planned.row_count,
                             .tokens = row_tokens / planned.row_count,
                             .compute_ns = reply.header.compute_ns,
                             .batch_share = reply.header.batch_share});
}

// Compares the rounds of a whole call with the prediction. Holders of one host share its
// processors, so each waits for all of them.
void Router::JudgeRounds() {
  HostLoads loads;
  bool any = false;
  for (uint32_t line = 0; line < lines_.size(); ++line) {
    if (!(flows_[line].took_us > 0)) continue;
    loads.Add(exchange_.link(line).peer().seat(), flows_[line].busy_us);
    any = true;
  }
  if (!any) return;
  for (uint32_t line = 0; line < lines_.size(); ++line) {
    const Flow& flow = flows_[line];
    if (!(flow.took_us > 0)) continue;
    HolderPeer& peer = exchange_.link(line).peer();
    peer.model.JudgeRound(std::max(flow.expected_us, loads.Us(peer.seat())), flow.took_us);
  }
}

// Compares a whole call with the prediction for its holders and this host.
void Router::JudgeCall(Duration took) {
  if (live_calls_ == nullptr || call_->is_trial) return;
  // A prompt ticket's thread may attend rows of other calls meanwhile.
  if (!call_->polled_at_once && !(call_->prompt && here_pieces_.empty())) return;
  if (!here_pieces_.empty() && !(here_us_ > 0)) return;
  CallTime time(here_us_);
  bool asked = false;
  for (uint32_t line = 0; line < lines_.size(); ++line) {
    const Flow& flow = flows_[line];
    if (!flow.asked) continue;
    if (!(flow.expected_us > 0)) return;
    time.Add(exchange_.link(line).peer().seat(), flow.expected_us, flow.busy_us);
    asked = true;
  }
  (asked ? live_calls_->routed : live_calls_->near).Observe(time.Us(), double(took.count()) / 1e3);
}

}  // namespace ckv
