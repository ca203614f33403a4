// Learns from the answers of a routed call how fast its holders and this host are.

#pragma once

#include <cstdint>
#include <vector>

#include "client/attend/local_attend.h"
#include "client/attend/planned_call.h"
#include "client/call/exchange.h"
#include "client/call/frame_poster.h"
#include "client/cost/compute_curve.h"
#include "client/cost/live_calls.h"
#include "client/holders/counters.h"
#include "client/holders/holder_peer.h"
#include "proto/base/clock.h"

namespace ckv {

// Reports what answers cost to the cost models of their holders, and compares calls with their
// predictions (client/cost/live_model.h). Part of a router; belongs to one call context.
class RouteLearner {
 public:
  // All must outlive this object. `calls` and `counters` may be null.
  RouteLearner(const PlannedCall* planned, const FramePoster* frames, const LocalAttend* local,
               Exchange* exchange, Clock* clock, LiveCalls* calls, CallCounters* counters);

  // Starts an attempt, after AttendPlan::Cut.
  void Begin();
  // Takes the cost of an answer.
  void Observe(const Exchange::Reply& reply);
  // Compares the rounds of a whole call with the prediction.
  void JudgeRounds();
  // Compares a whole call with the prediction for its holders and this host. `took` has no failed
  // attempts in it.
  void JudgeCall(Duration took);

 private:
  // Times of a round whose only frame had the holder to itself: as predicted and, if this thread
  // did nothing else meanwhile, as measured.
  struct Round {
    double expected_us = 0, busy_us = 0, took_us = 0;
  };

  double ObserveKernel(HolderPeer& peer, const Exchange::Reply& reply);
  double ColdUs(const HolderPeer& peer, double bytes, const FabricConstants& known) const;
  template <class Take>
  void ForEachChunk(const PlannedFrame& frame, Take take) const;
  void ListRuns(const PlannedFrame& frame);
  bool Timed() const;

  const PlannedCall& planned_;
  const FramePoster& frames_;
  const LocalAttend& local_;
  Exchange& exchange_;
  Clock* const clock_;
  LiveCalls* const calls_;        // may be null
  CallCounters* const counters_;  // may be null
  std::vector<Round> rounds_;     // [peers]
  // Both lists are those of the frame that was answered last.
  struct ChunkRun {
    uint64_t chunk = 0;  // the first 8 bytes of its id, which is a hash
    SharedRun run;
  };
  std::vector<ChunkRun> chunk_runs_;
  std::vector<SharedRun> runs_;
};

}  // namespace ckv
