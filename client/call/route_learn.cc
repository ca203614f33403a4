// For each reply: the runs of its frame (ListRuns), the kernel time expected of them, the time on
// the lane, and the round if its holder had one frame. After the call: all rounds, then the call.

#include "client/call/route_learn.h"

#include <algorithm>
#include <chrono>
#include <cstring>
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
  const bool dense = planned.index_count + planned.chosen_count == 0;
  const double kernel_us = dense ? ObserveKernel(peer, reply) : 0;
  const double queue_us = peer.queue.Us(now);
  peer.queue.Take(reply.header.queue_ns, now);
  // A lane over a fabric that is no longer the chosen one reveals nothing about the chosen one.
  const bool chosen = fabric == peer.fabric_kind.load(std::memory_order_relaxed);
  const Duration took = now - reply.posted;
  const PlannedPeer& planned_peer = planned_.peers[reply.peer_index];
  const std::optional<FabricConstants> known = peer.fabric.Get();
  const double cold_us = kernel_us > 0 && chosen && known ? ColdUs(peer, double(bytes), *known) : 0;
  if (kernel_us > 0 && chosen && known && planned_peer.frame_end - planned_peer.frame_begin == 1 &&
      peer.in_flight.LastWasAlone()) {
    // RouteRound of one frame.
    const double exchange_us =
        known->t_probe_us + double(bytes) / known->bandwidth_bytes_per_s * 1e6 + cold_us;
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
  // A round trip that is mostly cold_us hardly shows the lane's own time.
  const double lane_us = double(on_lane.count()) / 1e3;
  if (chosen && 2 * cold_us <= lane_us) peer.ObserveLane(bytes, lane_us - cold_us);
}

// Calls take(part, chunk, its context) for each chunk that a frame's parts attend.
template <class Take>
void RouteLearner::ForEachChunk(const PlannedFrame& frame, Take take) const {
  const AttendPlan& plan = planned_.plan;
  for (const PlannedPart& part : plan.PartsOf(frame)) {
    const PlannedSplit& split = plan.splits()[part.split];
    const ContextState& context = *planned_.call.segments[plan.units()[split.unit].segment].context;
    for (uint32_t left = split.node_count, n = split.first_node; left > 0;
         --left, n = plan.nodes()[n].next) {
      const PlannedNode& node = plan.nodes()[n];
      for (uint32_t i = node.attended_begin; i < node.attended_end; ++i)
        take(part, context.chunks()[plan.attended()[i].context_index], context);
    }
  }
}

// Lists the query rows of a frame by the chunks that they attend. A frame of several sequences may
// have all of them over the same chunks, or each over its own.
void RouteLearner::ListRuns(const PlannedFrame& frame) {
  runs_.clear();
  if (planned_.plan.PartsOf(frame).size() == 1) {
    // The same query rows attend each chunk, once. So one run of all tokens takes as long.
    SharedRun& all = runs_.emplace_back();
    ForEachChunk(frame, [&](const PlannedPart& part, const ContextChunk& chunk, const auto&) {
      all.rows = double(part.row_count);
      all.tokens += double(chunk.token_count);
    });
    return;
  }
  chunk_runs_.clear();
  ForEachChunk(
      frame, [&](const PlannedPart& part, const ContextChunk& chunk, const ContextState& context) {
        ChunkRun& run = chunk_runs_.emplace_back();
        const ChunkId& id = context.corpora()[chunk.part]->chunks[chunk.ordinal].id;
        std::memcpy(&run.chunk, id.bytes.data(), sizeof(run.chunk));
        run.run = {double(part.row_count), double(chunk.token_count)};
      });
  std::sort(chunk_runs_.begin(), chunk_runs_.end(),
            [](const ChunkRun& a, const ChunkRun& b) { return a.chunk < b.chunk; });
  for (size_t i = 0; i < chunk_runs_.size(); ++i) {
    if (i == 0 || chunk_runs_[i].chunk != chunk_runs_[i - 1].chunk)
      runs_.push_back({.rows = 0, .tokens = chunk_runs_[i].run.tokens});
    runs_.back().rows += chunk_runs_[i].run.rows;
  }
}

// Returns the kernel time that the holder's model expected, or 0.
double RouteLearner::ObserveKernel(HolderPeer& peer, const Exchange::Reply& reply) {
  const PlannedFrame& planned = planned_.plan.frames()[reply.tag];
  ListRuns(planned);
  return peer.ObserveAttend({.geometry = planned_.call.geometry(),
                             .fabric = exchange_.link(reply.peer_index).lane().kind(),
                             .rows = planned.row_count,
                             .runs = runs_,
                             .compute_ns = reply.header.compute_ns,
                             .batch_share = reply.header.batch_share});
}

// Returns what the rows that ListRuns listed add to the exchange of their frame.
double RouteLearner::ColdUs(const HolderPeer& peer, double bytes,
                            const FabricConstants& known) const {
  double tokens = 0;
  for (const SharedRun& run : runs_) tokens += run.tokens;
  const Geometry& geometry = planned_.call.geometry();
  return peer.ColdExchangeFor(geometry).Us(bytes, tokens * geometry.row_bytes(),
                                           known.bandwidth_bytes_per_s / 1e6);
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
