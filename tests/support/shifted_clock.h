// The real clock, put forward by hand: for what waits for real threads and counts in minutes.

#pragma once

#include <atomic>

#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv::test {

// Thread-safe. Always ahead of the real clock, so its deadlines are in the future for peers that
// read the real one.
class ShiftedClock final : public Clock {
 public:
  Instant Now() const noexcept override { return Clock::Real()->Now() + shift(); }
  bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return Clock::Real()->Await(mu, condition,
                                deadline == kInstantMax ? deadline : deadline - shift());
  }
  void Advance(Duration by) { shift_ns_ += by.count(); }

 private:
  Duration shift() const { return Duration(shift_ns_.load()); }

  std::atomic<int64_t> shift_ns_{0};
};

}  // namespace ckv::test
