// Measures how long loads of cold chunks take, to estimate the cost of the next one.

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "store/memory/eviction.h"

namespace ckv {

// Thread-safe.
class LoadMeter {
 public:
  // Notes a load of `bytes` bytes that took `us` microseconds.
  void Note(uint64_t bytes, double us) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++total_.count;
    total_.bytes += bytes;
    if (us <= 0) return;
    if (bytes <= kSmallLoadBytes) reload_.wait_us += kLearnShare * (us - reload_.wait_us);
    if (bytes >= kLargeLoadBytes)
      reload_.bytes_per_us += kLearnShare * (double(bytes) / us - reload_.bytes_per_us);
  }

  // Returns how long a load of `bytes` bytes will take, in microseconds.
  double ReloadUs(uint64_t bytes) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return reload_.Of(bytes);
  }

  // All loads so far.
  struct Total {
    uint64_t count = 0;
    uint64_t bytes = 0;
  };
  Total total() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return total_;
  }

 private:
  // Assumed until the first loads are measured: a disk of a gigabyte a second that answers in a
  // tenth of a millisecond. Only the relative value of large and small chunks depends on it.
  static constexpr ReloadCost kReloadAtStart = {.wait_us = 100, .bytes_per_us = 1000};
  // The weight of each load: the average follows the last ten or so.
  static constexpr double kLearnShare = 0.1;
  static constexpr uint64_t kSmallLoadBytes = 64 << 10, kLargeLoadBytes = 1 << 20;

  mutable absl::Mutex mu_;
  ReloadCost reload_ ABSL_GUARDED_BY(mu_) = kReloadAtStart;
  Total total_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
