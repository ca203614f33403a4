// Limits how fast bytes are moved, by all its users together.

#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv {

// Thread-safe. Users are served in the order of their calls.
class BytePacer {
 public:
  // A user that was late may catch up by this much time.
  static constexpr Duration kCatchUpMax = std::chrono::milliseconds(100);

  // `clock` must outlive this object.
  BytePacer(Clock* clock, uint64_t bytes_per_second)
      : clock_(*clock),
        bytes_per_second_(static_cast<double>(std::max<uint64_t>(1, bytes_per_second))) {}

  // Waits until these bytes may be moved. Returns false if `deadline` comes first, or after Stop.
  bool Acquire(uint64_t bytes, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const Instant begin = std::max(next_, clock_.Now() - kCatchUpMax);
    if (stop_ || begin > deadline) return false;
    const std::chrono::duration<double> time(static_cast<double>(bytes) / bytes_per_second_);
    next_ = begin + std::chrono::duration_cast<Duration>(time);
    return !clock_.Await(mu_, absl::Condition(&stop_), begin);
  }
  // Ends all waits, now and later.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }

 private:
  Clock& clock_;
  const double bytes_per_second_;
  absl::Mutex mu_;
  Instant next_ ABSL_GUARDED_BY(mu_){INT64_MIN / 2};  // when the next user may begin
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ckv
