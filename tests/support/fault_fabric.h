// A fabric whose lanes drop, delay, duplicate and break messages by a seed: for tests and
// simulation (I8).

#pragma once

#include <cstdint>
#include <memory>

#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv {

// Probabilities per message, each in [0, 1]. Each lane draws from a generator of its own, seeded by
// (seed, ordinal of the Dial). The fate of the n-th Post follows from these two alone, not from the
// order of polls. So a run can be replayed from its seed.
struct FaultPlan {
  uint64_t seed = 0;
  double drop_request = 0;  // the holder never sees it
  double drop_reply = 0;    // the requester never sees it
  // The reply is delivered twice: with the next Poll, or (an even chance) after the slot was
  // released and posted again. In the second case reply(slot) shows the older bytes until the newer
  // reply completes. The caller discards a duplicate by its request id before it merges (I1).
  double duplicate_reply = 0;
  // The reply is held back until the clock has advanced by delay_max at most.
  double delay = 0;
  Duration delay_max = std::chrono::milliseconds(10);
  // The lane breaks at a Post: from then on this end and the peer's see Unavailable.
  double break_lane = 0;
};

// Wraps `inner`, which carries the bytes; kind() is the inner fabric's. Faults act at the
// requester's end. A slot whose request or reply was dropped stays in flight until it is abandoned,
// and is then free at once. While a delayed reply is held back, Arm returns false, because nothing
// wakes a sleeper when a manual clock advances. Only the first delivery of a reply has its
// descriptor. Every delivery is copied, so a late one cannot harm memory; do not measure with it.
// `inner` and `clock` must outlive the result.
std::unique_ptr<Fabric> NewFaultFabric(Fabric* inner, Clock* clock, const FaultPlan& plan);

}  // namespace ckv
