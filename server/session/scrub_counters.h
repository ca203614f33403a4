// What a holder counts of the checks and repairs of its store that nobody asked for.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Written by the scrubber and the repairer, read by anyone; each stands alone.
struct ScrubCounters {
  std::atomic<uint64_t> checked_bytes{0};         // in memory and on the device
  std::atomic<uint64_t> pass_count{0};            // times that it came to the last chunk
  std::atomic<uint64_t> unreadable_count{0};      // chunks that the device did not give
  std::atomic<uint64_t> repaired_count{0};        // lost chunks got again from a replica
  std::atomic<uint64_t> repair_failure_count{0};  // lost chunks that nobody had, or gave
  std::atomic<uint64_t> repair_pending_count{0};  // lost chunks still tried for
};

// The same, as values.
struct ScrubStats {
  uint64_t checked_bytes = 0;
  uint64_t pass_count = 0;
  uint64_t unreadable_count = 0;
  uint64_t repaired_count = 0;
  uint64_t repair_failure_count = 0;
  uint64_t repair_pending_count = 0;
};

inline ScrubStats ReadAll(const ScrubCounters& counters) {
  const auto read = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  return {.checked_bytes = read(counters.checked_bytes),
          .pass_count = read(counters.pass_count),
          .unreadable_count = read(counters.unreadable_count),
          .repaired_count = read(counters.repaired_count),
          .repair_failure_count = read(counters.repair_failure_count),
          .repair_pending_count = read(counters.repair_pending_count)};
}

}  // namespace ckv
