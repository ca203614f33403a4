#include "client/call/ticket_wait.h"

#include <algorithm>

#include "client/call/ticket_state.h"

namespace ckv {

void TicketWait::Rest(std::span<const Ticket* const> tickets, int wake_fd) {
  const Instant now = clock_->Now();
  if (policy_.Rest(*clock_, now)) return;
  lanes_.clear();
  Instant until = now + LaneWait::kSleepMax;
  for (const Ticket* ticket : tickets) {
    if (ticket->state_ == nullptr || !ticket->state_->AddWaits(lanes_, until)) return;
  }
  if (until > now) sleep_.Sleep(lanes_, wake_fd, until - now);
}

}  // namespace ckv
