// The chunk ranges that wait to be prefetched, and the sources that prefetches take rows from now.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ckv {

// Limits how many prefetches take rows from one source. Not thread-safe.
class PrefetchQueue {
 public:
  // The most ranges that may be queued. Others wait for their context's next calls.
  static constexpr size_t kQueuedRangesMax = 1024;
  // A holder also serves other requesters, and each of them may prefetch from it.
  static constexpr uint32_t kHolderFlowsMax = 1;
  // Returns the source of a range's rows: a holder, or the context that recomputes them.
  using SourceOf = absl::FunctionRef<const void*(uint64_t key)>;

  bool full() const { return keys_.size() >= kQueuedRangesMax; }
  // No range waits, and no prefetch is in progress.
  bool idle() const { return keys_.empty() && sources_.empty(); }

  void Add(uint64_t key) { keys_.push_back(key); }
  // Adds a range whose prefetch some caller awaits.
  void AddFirst(uint64_t key) { keys_.push_front(key); }
  // Returns whether Take would return a range.
  bool HasNext(SourceOf source_of) const { return Next(source_of) < keys_.size(); }
  // Takes the first range whose source is below its limit, if there is one.
  std::optional<uint64_t> Take(SourceOf source_of) {
    const size_t at = Next(source_of);
    if (at == keys_.size()) return std::nullopt;
    const uint64_t key = keys_[at];
    keys_.erase(keys_.begin() + static_cast<std::ptrdiff_t>(at));
    return key;
  }

  // A prefetch from this source begins, or has ended.
  void Begin(const void* source) { sources_.push_back(source); }
  void End(const void* source) { sources_.erase(std::ranges::find(sources_, source)); }

 private:
  // Returns the index of the range that Take takes; the number of ranges if there is none.
  size_t Next(SourceOf source_of) const {
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (std::ranges::count(sources_, source_of(keys_[i])) < kHolderFlowsMax) return i;
    }
    return keys_.size();
  }

  std::deque<uint64_t> keys_;
  std::vector<const void*> sources_;  // one for each prefetch in progress
};

}  // namespace ckv
