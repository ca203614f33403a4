// A fabric whose lanes drop, delay, duplicate and break by a seed: for tests and simulation (I8).

#pragma once

#include <cstdint>
#include <memory>

#include "proto/clock.h"
#include "transport/fabric.h"

namespace ckv {

// Probabilities per message, each in [0, 1], drawn from one generator a lane seeded by
// (seed, ordinal of the Dial); the fates of the n-th Post are a function of the two, whoever polls
// when, so a run replays from the seed.
struct FaultPlan {
  uint64_t seed = 0;
  double drop_request = 0;  // the holder never sees it
  double drop_reply = 0;    // the requester never sees it
  // Delivered twice: by the next Poll, or (an even chance) after the slot was released and posted
  // anew. reply(slot) then shows the older bytes until the newer reply completes. Discarded by
  // request id before merge (I1).
  double duplicate_reply = 0;
  double delay = 0;  // of a reply, until the clock has advanced by delay_max at most
  Duration delay_max = std::chrono::milliseconds(10);
  double break_lane = 0;  // at a Post: this end and the peer's see Unavailable from then on
};

// Faults act at the requester's end; the inner fabric carries the bytes, and kind() is the inner
// one's. A slot whose request or reply was dropped stays in flight until it is abandoned, and is
// then free at once. While a delayed reply is held back Arm returns false: nothing wakes a sleeper
// when a manual clock advances. A descriptor comes with a reply's first delivery. Every delivery is
// copied, so a late one is harmless to memory; not for measuring. `inner` and `clock` must outlive
// the result.
std::unique_ptr<Fabric> NewFaultFabric(Fabric* inner, Clock* clock, const FaultPlan& plan);

}  // namespace ckv
