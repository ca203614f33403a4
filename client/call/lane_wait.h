// How an engine waits for its lanes: it spins or sleeps on their events, as transport/wait_policy.h
// says.

#pragma once

#include <poll.h>

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "proto/clock.h"
#include "transport/fabric.h"
#include "transport/wait_policy.h"

namespace ckv {

// Belongs to one engine; keeps its memory between calls.
class LaneWait {
 public:
  // Longest sleep before the clock and the lanes are looked at again: a fault's delay and a manual
  // clock's deadline make no lane readable. 100 wake-ups a second cost nothing.
  static constexpr Duration kSleepMax = std::chrono::milliseconds(10);

  LaneWait(Clock* clock, Duration spin_max) : clock_(clock), policy_(spin_max) {}

  // Before the first Pause of a call that waits for at most `lane_count` lanes at once.
  void Begin(size_t lane_count) {
    fds_.reserve(lane_count);  // here, since a warm engine may sleep for the first time
    policy_.Begin(clock_->Now());
  }
  // What was waited for came.
  void Came() { policy_.Came(clock_->Now()); }
  // The wait for the next begins: after whatever was done with the last.
  void Again() { policy_.Begin(clock_->Now()); }

  // Nothing came from any of `lanes`: returns when it is time to poll them again.
  //   DeadlineExceeded
  absl::Status Pause(std::span<RequestLane* const> lanes, Instant deadline);

 private:
  void Sleep(std::span<RequestLane* const> lanes, Duration at_most);

  Clock* const clock_;
  WaitPolicy policy_;
  std::vector<pollfd> fds_;
};

// "Deadline minus now" as the wire carries it: microseconds, at least 1, saturating.
uint32_t RemainingUs(Instant deadline, Instant now);

}  // namespace ckv
