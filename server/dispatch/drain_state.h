// The drain of a dispatcher: other threads begin it and wait, and the dispatcher's thread ends it.

#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv {

// Thread-safe.
class DrainState {
 public:
  void Begin() { begun_.store(true, std::memory_order_release); }
  bool begun() const { return begun_.load(std::memory_order_acquire); }

  // Every request that arrived before the drain has a reply.
  void End() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }
  // Returns after End, or at `deadline`.
  void Await(Clock& clock, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    clock.Await(mu_, absl::Condition(&ended_), deadline);
  }

 private:
  std::atomic<bool> begun_{false};
  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ckv
