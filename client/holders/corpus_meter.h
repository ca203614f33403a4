// Counts attends by corpus, so that people see which corpora are used most.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/corpus.h"

namespace ckv {

// The attends over one corpus, since the requester was made.
struct CorpusCalls {
  std::string name, tenant;
  uint64_t call_count = 0;
  uint64_t query_row_count = 0;
};

// Returns the first `count_max` of `hottest` that belong to no tenant. The last entry, without a
// name, sums the calls over all tenants' corpora, if there are any. Their names must not be shown
// to others (I6).
std::vector<CorpusCalls> WithoutTenants(const std::vector<CorpusCalls>& hottest, size_t count_max);

// Thread-safe. Counting takes no lock once a corpus is known: a hash of its name and two atomic
// additions. Tracks the first kCorpusCountMax corpora, and counts calls over all others together.
class CorpusMeter {
 public:
  // 49 KB of counters. A requester with more corpora does not have just a few hot ones.
  static constexpr size_t kCorpusCountMax = 1024;

  void Count(const Corpus& corpus, uint32_t query_rows);
  // Returns the corpora with the most calls, in descending order, at most `count_max`.
  std::vector<CorpusCalls> Hottest(size_t count_max) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of calls over corpora after the first kCorpusCountMax.
  uint64_t other_call_count() const { return other_calls_.load(std::memory_order_relaxed); }

 private:
  // A place is taken once its key is not 0. Its names are set before its key, under the lock.
  struct Place {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> rows{0};
  };
  struct Names {
    std::string name, tenant;
  };
  // Twice as many places as corpora, so that the search for a free one is short.
  static constexpr size_t kPlaceCount = 2 * kCorpusCountMax;
  Place* Find(const Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_);

  std::array<Place, kPlaceCount> places_;
  std::atomic<uint64_t> other_calls_{0};
  mutable absl::Mutex mu_;
  std::atomic<size_t> taken_{0};  // increases under the lock
  std::array<Names, kPlaceCount> names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
