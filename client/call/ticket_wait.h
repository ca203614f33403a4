// Waits for many tickets at once, on the thread that drives them.

#pragma once

#include <span>
#include <vector>

#include "client/call/lane_wait.h"
#include "client/ticket.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"
#include "transport/wait_policy.h"

namespace ckv {

// Polls or sleeps as a blocking call does (transport/wait_policy.h). Belongs to one thread. Keeps
// its memory between waits.
class TicketWait {
 public:
  // `clock` must outlive it.
  TicketWait(Clock* clock, Duration spin_max) : clock_(clock), policy_(spin_max) {}

  // Call when a ticket is done, and when the first of several is submitted.
  void Came() { policy_.Came(clock_->Now()); }
  void Again() { policy_.Begin(clock_->Now()); }

  // Call when TryPoll returned kInFlight for every ticket. Returns when another TryPoll may help,
  // or `wake_fd` is readable (-1 if there is none); at the latest after LaneWait::kSleepMax, 10 ms.
  void Rest(std::span<const Ticket* const> tickets, int wake_fd);

 private:
  Clock* const clock_;
  WaitPolicy policy_;
  LaneSleep sleep_;
  std::vector<RequestLane*> lanes_;
};

}  // namespace ckv
