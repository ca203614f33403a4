// When a thread that polls lanes should spin and when it should sleep.

#pragma once

#include "proto/clock.h"

namespace ckv {

// Spins for spin_max, then sleeps: so far the usual. But waking up costs 60 to 100 us where the
// processor idles in earnest, on virtual machines above all, and a thread that slept computes more
// slowly at first; while decoding waits for the same thing over and over, an engine for a kernel of
// 600 us, a dispatcher for the next layer's queries. So when the last two waits were short, the
// next one is spun through for as long as they took.
//
// After a wait of more than kPredictMax it spins for spin_max only, so an idle thread stays asleep.
// A spin_max of zero turns all spinning off. One thread at a time; allocates nothing.
class WaitPolicy {
 public:
  // 16 query rows over 2048 rows are 0.65 ms of one core, 0.95 ms when a neighbour disturbs it, and
  // one wait beyond the limit makes the next two sleep: 1 ms added 53 to 82 us to such a call, 2 ms
  // 5 to 17.
  static constexpr Duration kPredictMax = std::chrono::milliseconds(2);

  explicit WaitPolicy(Duration spin_max) : spin_max_(spin_max) {}

  // What was waited for came.
  void Came(Instant now);
  // A wait begins.
  void Begin(Instant now) { begun_ = now; }

  // Whether to poll again at once; else sleep on the lanes' events.
  bool Spins(Instant now) const;

 private:
  const Duration spin_max_;
  Instant begun_;
  // The last two waits that were longer than spin_max.
  Duration last_ = Duration::max(), before_ = Duration::max();
};

}  // namespace ckv
