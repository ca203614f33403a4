// One submitted call, driven step by step.

#pragma once

#include <atomic>
#include <optional>

#include "absl/status/status.h"
#include "attention/partial.h"
#include "client/call/attempts.h"
#include "client/call/call_context_pool.h"
#include "client/calls.h"
#include "client/context/layer_call.h"
#include "proto/base/clock.h"

namespace ckv {

// Used by one thread at a time; each Step makes it the owner of the call context.
struct TicketState {
  // Begins the call. `call` was made of `segments`. Everything else must outlive it.
  TicketState(Attempts* attempts, Clock* clock, CallContextPool::Lease lease,
              LayerCallSegments segments, const RouteCall& call, const PartialView& out,
              AttendReport* report);
  ~TicketState() { Cancel(); }
  TicketState(const TicketState&) = delete;
  TicketState& operator=(const TicketState&) = delete;

  // Goes as far as it can without waiting. Returns true once the call is done.
  bool Step();
  // Waits until another Step may help.
  void Rest();
  void Cancel();
  // How the call ended. Only once it is done.
  const absl::Status& status() const { return status_; }
  bool done() const { return !lease_.has_value(); }

 private:
  void BeginAttempt();
  void EndAttempt(absl::Status status);
  void End(absl::Status status);

  Attempts* const attempts_;
  Clock* const clock_;
  std::optional<CallContextPool::Lease> lease_;  // until the call is done
  LayerCallSegments segments_;
  RouteCall call_;
  const PartialView out_;
  AttendReport* const report_;
  bool running_ = false;             // an attempt is under way
  std::optional<Instant> again_at_;  // when the next attempt begins, if one is to
  int retry_count_ = 0;
  absl::Status status_;
};

}  // namespace ckv
