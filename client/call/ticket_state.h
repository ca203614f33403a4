// The state machine of one submitted call.

#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "attention/partial.h"
#include "client/call/attempts.h"
#include "client/call/call_context_pool.h"
#include "client/call/hedge.h"
#include "client/calls.h"
#include "client/plan/layer_call.h"
#include "client/trace/call_tries.h"
#include "proto/base/clock.h"

namespace ckv {

// Used by one thread at a time: each Step claims the call context for its thread. While a call
// waits for an unreachable holder to return, it releases its call context for other calls.
struct TicketState {
  static constexpr uint64_t kShortPairsMax = HedgedAttend::kShortPairsMax;
  // Begins the call. `call` was built from `segments`. All pointers must outlive the state. If
  // `may_wait` is false and beginning would wait, the first Step that may wait begins the call.
  TicketState(Attempts* attempts, Clock* clock, CallContextPool::Lease lease,
              LayerCallSegments segments, const RouteCall& call, const PartialView& out,
              AttendReport* report, bool may_wait);
  ~TicketState() { Cancel(); }
  TicketState(const TicketState&) = delete;
  TicketState& operator=(const TicketState&) = delete;

  // Advances the call as far as possible. Returns true once the call is done. Only if `may_wait` is
  // set, waits for what a new attempt needs (sessions, handles) and does long computations, which
  // only locally cached rows need.
  bool Step(bool may_wait);
  // Blocks until another Step may make progress.
  void Rest();
  void Cancel();
  // Whether the last Step stopped because it may neither wait nor compute for long.
  bool must_wait() const { return must_wait_; }
  // Whether the call waits for an unreachable holder to return. No thread can speed that up.
  bool awaits_return() const { return !done_ && tries_.waits; }
  // Appends the lanes whose events may allow another Step, and moves `until` forward to the
  // earliest time at which a Step may make progress. Returns false if a Step may make progress at
  // once.
  bool AddWaits(std::vector<RequestLane*>& lanes, Instant& until) const;
  // The call's result. Valid only once the call is done.
  const absl::Status& status() const { return status_; }
  bool done() const { return done_; }

 private:
  void BeginAttempt(bool may_wait);
  absl::Status FindRows(bool may_wait);
  // Takes a call context if the call has none. If none is free, returns false; once the wait for
  // the holder is over, it also ends the call.
  bool TakeContext();
  void EndAttempt(absl::Status status);
  void End(const absl::Status& status);

  Attempts* const attempts_;
  Clock* const clock_;
  std::optional<CallContextPool::Lease> lease_;  // unset when done, or waiting for a holder
  LayerCallSegments segments_;
  RouteCall call_;
  HedgedAttend hedged_;
  const PartialView out_;
  AttendReport* const report_;
  bool running_ = false;  // an attempt is under way
  bool must_wait_ = false;
  bool rows_lost_ = false;  // candidates of a choice are gone: FindAgain before the next attempt
  std::optional<Instant> again_at_;  // start of the next attempt, if there will be one
  CallTries tries_;
  bool done_ = false;
  absl::Status status_;
};

}  // namespace ckv
