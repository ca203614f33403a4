// One submitted call, driven step by step.

#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "attention/partial.h"
#include "client/call/attempts.h"
#include "client/call/call_context_pool.h"
#include "client/calls.h"
#include "client/context/layer_call.h"
#include "client/trace/call_tries.h"
#include "proto/base/clock.h"

namespace ckv {

// Used by one thread at a time; each Step makes it the owner of the call context. While a call
// waits for a holder to come back, it has no call context, so that other calls may use it.
struct TicketState {
  // Pairs of a query row and a near row that a step which may not wait attends itself. At 20 ns of
  // a core each they take 40 us, about what it costs to hand a call to another thread.
  static constexpr uint64_t kShortPairsMax = 2048;
  // Begins the call. `call` was made of `segments`. Everything else must outlive it. If it may not
  // wait and would, it begins with the first Step that may.
  TicketState(Attempts* attempts, Clock* clock, CallContextPool::Lease lease,
              LayerCallSegments segments, const RouteCall& call, const PartialView& out,
              AttendReport* report, bool may_wait);
  ~TicketState() { Cancel(); }
  TicketState(const TicketState&) = delete;
  TicketState& operator=(const TicketState&) = delete;

  // Goes as far as it can. Waits only for what a new attempt needs (sessions, handles), and
  // computes for long only over near rows, if it may. Returns true once the call is done.
  bool Step(bool may_wait);
  // Waits until another Step may help.
  void Rest();
  void Cancel();
  // Whether the last Step left off because it may neither wait nor compute for long.
  bool must_wait() const { return must_wait_; }
  // Whether the call waits for a holder to come back. No thread can speed it up.
  bool awaits_return() const { return !done_ && tries_.waits; }
  // Appends the lanes whose events may help another Step, and brings `until` forward to the time
  // from which it may. Returns false if it may help at once.
  bool AddWaits(std::vector<RequestLane*>& lanes, Instant& until) const;
  // How the call ended. Only once it is done.
  const absl::Status& status() const { return status_; }
  bool done() const { return done_; }

 private:
  void BeginAttempt(bool may_wait);
  // Takes a call context if the call has none. If none is free, returns false, and ends the call
  // once its wait for a holder is over.
  bool TakeContext();
  void EndAttempt(absl::Status status);
  void End(const absl::Status& status);

  Attempts* const attempts_;
  Clock* const clock_;
  std::optional<CallContextPool::Lease> lease_;  // until the call is done, but while it waits
  LayerCallSegments segments_;
  RouteCall call_;
  const PartialView out_;
  AttendReport* const report_;
  bool running_ = false;  // an attempt is under way
  bool must_wait_ = false;
  std::optional<Instant> again_at_;  // when the next attempt begins, if one is to
  CallTries tries_;
  bool done_ = false;
  absl::Status status_;
};

}  // namespace ckv
