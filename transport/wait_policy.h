// Decides when a thread that polls lanes spins and when it sleeps.

#pragma once

#include "proto/base/clock.h"
#include "proto/host/platform.h"

namespace ckv {

// Normally a waiting thread spins for spin_max, then sleeps. But waking up costs 60 to 100 us on a
// processor in a deep idle state, especially on a virtual machine. A thread that slept also
// computes more slowly at first. Decoding waits for the same events repeatedly. An inference engine
// waits for a kernel of 600 us, a dispatcher for the queries of the next layer. So if the last two
// waits beyond spin_max were at most kPredictMax, the thread spins for the longer of them plus
// spin_max.
//
// After a wait of more than kPredictMax the thread spins for spin_max only, so an idle thread stays
// asleep. If spin_max is zero, it never spins.
//
// A thread that spins takes a processor from threads that could compute. So it yields the processor
// every kYieldEvery of a wait. If a yield takes kShared or longer, another thread has run there.
// After two of these in a row, at most kSharedMin apart, threads outnumber processors, and this
// thread sleeps through its waits for a while. Used by one thread at a time; allocates nothing.
class WaitPolicy {
 public:
  // A yield takes about 0.3 us if no other thread wants the processor, so this costs 3 % of a spin.
  static constexpr Duration kYieldEvery = std::chrono::microseconds(10);
  // About what it costs to wake a thread that sleeps: 36 us where an attend over gRPC was measured
  // (deploy/bench.sh data-path). A thread that lends its processor for less loses more by sleeping.
  // With 10 us, gRPC's own threads made its callers sleep: an attend of 16 rows took 189 us instead
  // of 156.
  static constexpr Duration kShared = std::chrono::microseconds(50);
  // How long a thread sleeps instead of spinning: kSharedMin at first. The time doubles, up to
  // kSharedMax, each time the thread spins again and finds the processor shared.
  static constexpr Duration kSharedMin = std::chrono::milliseconds(2);
  static constexpr Duration kSharedMax = std::chrono::milliseconds(512);

  // The longest wait that is predicted. 16 query rows over 2048 rows take 0.65 ms of one core, 0.95
  // ms if a neighbour disturbs it. One wait beyond the limit makes the next two sleep. A limit of 1
  // ms added 53 to 82 us to a call of that size; 2 ms added 5 to 17 us.
  static constexpr Duration kPredictMax = std::chrono::milliseconds(2);

  // `yield` yields the processor; tests replace it.
  explicit WaitPolicy(Duration spin_max, void (*yield)() = YieldProcessor)
      : spin_max_(spin_max), yield_(yield) {}

  // Records that the awaited event arrived.
  void Came(Instant now);
  // Records that a wait begins.
  void Begin(Instant now) { begun_ = now; }

  // Returns whether to poll again at once. If not, sleep on the lanes' events.
  bool Spins(Instant now) const;
  // Pauses between two polls and returns true. If it returns false, sleep on the lanes' events.
  // `now` is the time of `clock`.
  bool Rest(Clock& clock, Instant now);
  // Records that a yield ended now and how long it took. Rest calls it.
  void Yielded(Instant now, Duration took);

 private:
  const Duration spin_max_;
  void (*const yield_)();
  Instant begun_;
  Instant yielded_;       // the end of the last yield
  Instant shared_until_;  // until then it sleeps
  Duration shared_for_ = Duration::zero();
  bool last_was_shared_ = false;  // the last yield took kShared or longer
  // The last two waits that were longer than spin_max.
  Duration last_ = Duration::max(), before_ = Duration::max();
};

}  // namespace ckv
