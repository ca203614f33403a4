// Counts events of a requester's calls, over all call contexts.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Relaxed throughout: these are for people and metrics, and order nothing.
struct CallCounters {
  std::atomic<uint64_t> discarded{0};       // replies that nobody waited for (I1)
  std::atomic<uint64_t> rdma_fallbacks{0};  // lanes on tcp that should use verbs
  std::atomic<uint64_t> retries{0};         // retries that overloaded holders asked for
  // Retries asked for but not made, because the budget was spent.
  std::atomic<uint64_t> retries_refused{0};
  std::atomic<uint64_t> failovers{0};  // attempts made again with another replica
  std::atomic<uint64_t> reopens{0};    // attempts made again over a new session
  std::atomic<uint64_t> fetches{0};    // calls that fetch ranges, selections, or into a cache
  std::atomic<uint64_t> explains{0};   // calls of Explain
};

}  // namespace ckv
