// When a thread that polls lanes spins and when it sleeps.

#pragma once

#include "proto/base/clock.h"

namespace ckv {

// Normally a waiter spins for spin_max, then sleeps. But waking up costs 60 to 100 us on a
// processor that idles deeply, above all on a virtual machine. A thread that slept also computes
// more slowly at first. Decoding waits for the same event again and again. An inference engine
// waits for a kernel of 600 us, a dispatcher for the queries of the next layer. So if the last two
// waits were short, the next one is spun through for as long as they took.
//
// After a wait of more than kPredictMax it spins for spin_max only, so an idle thread stays asleep.
// If spin_max is zero, it never spins.
//
// A thread that spins takes a processor from threads that could compute. So every kYieldEvery of a
// wait it gives the processor away. If that takes kShared or longer, another thread has run there,
// and this one sleeps through its waits for a while: threads outnumber processors. Belongs to one
// thread at a time; allocates nothing.
class WaitPolicy {
 public:
  // A yield takes some 0.3 us if nobody else wants the processor, so this costs 3 % of a spin.
  static constexpr Duration kYieldEvery = std::chrono::microseconds(10);
  // Two switches between threads take 2 to 5 us; a thread that had nothing to do took no longer.
  static constexpr Duration kShared = std::chrono::microseconds(10);
  // How long a thread sleeps instead of spinning, at first. Each time that spinning is tried again
  // and finds the processor shared, it doubles.
  static constexpr Duration kSharedMin = std::chrono::milliseconds(2);
  static constexpr Duration kSharedMax = std::chrono::milliseconds(512);

  // 16 query rows over 2048 rows take 0.65 ms of one core, 0.95 ms if a neighbour disturbs it. One
  // wait beyond the limit makes the next two sleep. A limit of 1 ms added 53 to 82 us to a call of
  // that size, 2 ms added 5 to 17.
  static constexpr Duration kPredictMax = std::chrono::milliseconds(2);

  // `yield` gives the processor away, for tests.
  explicit WaitPolicy(Duration spin_max, void (*yield)() = YieldProcessor)
      : spin_max_(spin_max), yield_(yield) {}

  // Notes that the awaited event came.
  void Came(Instant now);
  // Notes that a wait begins.
  void Begin(Instant now) { begun_ = now; }

  // Whether to poll again at once. If not, sleep on the lanes' events.
  bool Spins(Instant now) const;
  // Rests between two polls and returns true, or returns false: sleep on the lanes' events. `now`
  // is the time of `clock`.
  bool Rest(Clock& clock, Instant now);
  // Notes how long a yield took that ended now. Rest calls it.
  void Yielded(Instant now, Duration took);

 private:
  static void YieldProcessor();

  const Duration spin_max_;
  void (*const yield_)();
  Instant begun_;
  Instant yielded_;       // the end of the last yield
  Instant shared_until_;  // until then it sleeps
  Duration shared_for_ = Duration::zero();
  bool last_was_shared_ = false;  // the last yield
  // The last two waits that were longer than spin_max.
  Duration last_ = Duration::max(), before_ = Duration::max();
};

}  // namespace ckv
