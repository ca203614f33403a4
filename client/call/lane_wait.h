// Waits for the lanes of a call: polls, or sleeps on their events, as in transport/wait_policy.h.

#pragma once

#include <poll.h>

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"
#include "transport/wait_policy.h"

namespace ckv {

// Sleeps on the events of lanes. Keeps its memory between sleeps.
class LaneSleep {
 public:
  // Makes room for `lane_count` lanes.
  void Reserve(size_t lane_count) { fds_.reserve(lane_count + 1); }
  // Sleeps until a lane may have something, `wake_fd` is readable, or `at_most` (below 1 s) has
  // passed. `wake_fd` below 0 means none. If a lane has no event to wake this thread, yields the
  // processor once instead.
  void Sleep(std::span<RequestLane* const> lanes, int wake_fd, Duration at_most);

 private:
  std::vector<pollfd> fds_;
};

// Belongs to one call context. Keeps its memory between calls.
class LaneWait {
 public:
  // The longest sleep before the clock and the lanes are checked again. An injected delay or a
  // manual clock's deadline makes no lane readable. 100 wake-ups a second cost nothing.
  static constexpr Duration kSleepMax = std::chrono::milliseconds(10);

  LaneWait(Clock* clock, Duration spin_max) : clock_(clock), policy_(spin_max) {}

  // Call before the first Pause of a call that waits for at most `lane_count` lanes at once.
  void Begin(size_t lane_count) {
    sleep_.Reserve(lane_count);  // here, because a warm context may sleep for the first time
    policy_.Begin(clock_->Now());
  }
  // Call when the awaited reply arrives.
  void Came() { policy_.Came(clock_->Now()); }
  // Call when the wait for the next reply begins.
  void Again() { policy_.Begin(clock_->Now()); }

  // The error of a call whose deadline has passed.
  static absl::Status PassedError() {
    return absl::DeadlineExceededError("no answer before the deadline");
  }
  // Call when none of `lanes` had a reply. Returns when they should be polled again, at `wake` at
  // the latest. A `wake` that has passed has no effect.
  //   DeadlineExceeded    the deadline has passed.
  absl::Status Pause(std::span<RequestLane* const> lanes, Instant deadline,
                     Instant wake = kInstantMax);

 private:
  Clock* const clock_;
  WaitPolicy policy_;
  LaneSleep sleep_;
};

}  // namespace ckv
