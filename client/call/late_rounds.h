// When the holders of an attend are late.

#pragma once

#include <cstdint>
#include <vector>

#include "client/attend/planned_call.h"
#include "client/call/exchange.h"
#include "proto/base/clock.h"

namespace ckv {

// Compares the rounds of an attempt, one for each holder, with earlier rounds of these holders
// (RoundTimes, client/cost/round_times.h). A round begins when the first frames are posted and ends
// with the holder's last reply. Part of a router; belongs to one call context.
//
// It is off for attends of which no chunk has several holders, and for measurements of the
// requester itself. Rounds are observed only if the caller notices replies soon.
class LateRounds {
 public:
  // Both must outlive this object.
  LateRounds(const PlannedCall* planned, Exchange* exchange)
      : planned_(*planned), exchange_(*exchange) {}

  // Call it when an attempt begins: nothing is known of it.
  void Clear() {
    on_ = false;
    late_at_ = kInstantMax;
  }
  // Starts the rounds of an attempt whose first frames were posted at `posted`.
  void Begin(Instant posted);
  Instant posted() const { return begun_; }
  bool on() const { return on_; }
  // Takes a reply.
  void Answered(uint32_t peer_index, Instant now) { rounds_[peer_index].answered = now; }
  // Ends an attempt that is complete, or whose answer came from elsewhere, and observes its rounds.
  // The time of a round without a reply is that until `now`.
  void End(Instant now);

  // Returns when 95 of 100 attempts of this size have all their replies. kInstantMax if that is not
  // known.
  Instant late_at() const { return late_at_; }

 private:
  struct Round {
    uint64_t pairs = 0;
    Instant answered;
  };

  const PlannedCall& planned_;
  Exchange& exchange_;
  bool on_ = false;
  Instant begun_, late_at_ = kInstantMax;
  std::vector<Round> rounds_;  // [peers]
};

}  // namespace ckv
