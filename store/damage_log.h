// Remembers what a store found damaged: the chunks that it lost, and how many it healed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/ids.h"

namespace ckv {

// A chunk that was removed because it was damaged.
struct LostChunk {
  ChunkId id;
  std::vector<std::string> readers = {};  // tenants who could read it; empty if not known
  bool kept = false;                      // marked by Keep, not by KeepFor
};

// Thread-safe.
class DamageLog {
 public:
  // The most lost chunks that wait for TakeLost; later ones are not reported.
  static constexpr size_t kLostCountMax = 1u << 16;

  // Counts and queues a chunk that was removed now.
  void AddLost(LostChunk lost) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++lost_count_;
    Queue(std::move(lost));
  }
  // Queues a chunk that was removed before the store was opened.
  void AddEarlier(LostChunk lost) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Queue(std::move(lost));
  }
  // Counts a damaged copy that was restored from the other.
  void AddHealed() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++healed_count_;
  }

  // Returns the chunks queued since the last call.
  std::vector<LostChunk> TakeLost() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(lost_, {});
  }
  uint64_t lost_count() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return lost_count_;
  }
  uint64_t healed_count() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return healed_count_;
  }

 private:
  void Queue(LostChunk lost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (lost_.size() < kLostCountMax) lost_.push_back(std::move(lost));
  }

  mutable absl::Mutex mu_;
  std::vector<LostChunk> lost_ ABSL_GUARDED_BY(mu_);
  uint64_t lost_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t healed_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
