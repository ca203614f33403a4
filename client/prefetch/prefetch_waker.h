// The prefetcher as contexts see it.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/context/context_usage.h"
#include "proto/base/clock.h"

namespace ckv {

// Collects the contexts that are due, and wakes the deciding thread. Thread-safe. Outlives the
// prefetcher, because contexts may.
class PrefetchWaker final : public ContextWatcher {
 public:
  void Due(uint64_t context_id) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    due_.push_back(context_id);
  }
  void Poke() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    poked_ = true;
  }
  // Reserves space for the notifications of `contexts` contexts between two Takes, so that no call
  // allocates. A context may send a count, an end, and a count that was awaited too late.
  void Expect(size_t contexts) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    expected_ = std::max(expected_, 4 * contexts);
    due_.reserve(expected_);
  }
  // Waits for notifications, and moves them to `taken`.
  void Take(Clock& clock, std::vector<uint64_t>& taken) ABSL_LOCKS_EXCLUDED(mu_) {
    taken.clear();
    absl::MutexLock lock(&mu_);
    clock.Await(mu_, absl::Condition(this, &PrefetchWaker::HasAny), kInstantMax);
    poked_ = false;
    busy_ = true;
    taken.reserve(expected_);
    taken.swap(due_);
  }
  // Call when everything that was taken is done.
  void Done() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    busy_ = false;
  }
  bool idle() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return !busy_ && !HasAny();
  }

 private:
  bool HasAny() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return poked_ || !due_.empty(); }
  absl::Mutex mu_;
  std::vector<uint64_t> due_ ABSL_GUARDED_BY(mu_);
  size_t expected_ ABSL_GUARDED_BY(mu_) = 0;
  bool poked_ ABSL_GUARDED_BY(mu_) = false;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ckv
