// The rows of a context that are in the local row cache.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/context/local_rows.h"

namespace ckv {

// Thread-safe: the prefetcher's threads write it, and the threads of calls read it.
class ContextLocalRows {
 public:
  // The locally cached rows, or null if there are none. A call keeps using the table that it got.
  std::shared_ptr<const LocalRowTable> table() const ABSL_LOCKS_EXCLUDED(mu_) {
    if (!has_table_.load(std::memory_order_acquire)) return nullptr;
    absl::MutexLock lock(&mu_);
    return table_;
  }
  // Whether local answers have the same bits as those of the chunks' holders (one kernel target).
  bool same_bits() const { return same_bits_.load(std::memory_order_relaxed); }
  // Calls that begin from now on use `table`: one with an entry per chunk, or null.
  void Set(std::shared_ptr<const LocalRowTable> table, bool same_bits) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    same_bits_.store(same_bits, std::memory_order_relaxed);
    has_table_.store(table != nullptr, std::memory_order_release);
    table_.swap(table);
  }

  // Records bytes of rows that were copied to the local row cache for this context, until a call
  // reports them.
  void AddPrefetched(uint64_t bytes) {
    prefetched_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  uint64_t TakePrefetched() {
    if (prefetched_bytes_.load(std::memory_order_relaxed) == 0) return 0;
    return prefetched_bytes_.exchange(0, std::memory_order_relaxed);
  }

 private:
  mutable absl::Mutex mu_;
  std::shared_ptr<const LocalRowTable> table_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> same_bits_{false};
  std::atomic<bool> has_table_{false};  // contexts without local rows need no lock
  std::atomic<uint64_t> prefetched_bytes_{0};
};

}  // namespace ckv
