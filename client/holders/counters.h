// What a requester counts of its calls, over all engines.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Relaxed throughout: for people and metrics; orders nothing.
struct RouteCounters {
  std::atomic<uint64_t> discarded{0};        // replies that nobody waited for (I1)
  std::atomic<uint64_t> rdma_fallbacks{0};   // lanes of tcp that should have been of verbs
  std::atomic<uint64_t> retries{0};          // that overloaded holders asked for
  std::atomic<uint64_t> retries_refused{0};  // and that were not made, for want of a budget
  std::atomic<uint64_t> failovers{0};        // calls made again with another replica
};

}  // namespace ckv
