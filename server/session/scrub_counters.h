// Counters of the checks and repairs that a holder makes of its store in the background.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Written by the scrubber's and the repairer's threads, read by any. Each counter stands alone:
// reading several gives no snapshot.
struct ScrubCounters {
  std::atomic<uint64_t> checked_bytes{0};         // bytes checked, in memory and on disk
  std::atomic<uint64_t> pass_count{0};            // rounds over all chunks that were completed
  std::atomic<uint64_t> unreadable_count{0};      // chunks whose file the device could not read
  std::atomic<uint64_t> repaired_count{0};        // lost chunks restored from a replica
  std::atomic<uint64_t> repair_failure_count{0};  // lost chunks given up: no replica supplied them
  std::atomic<uint64_t> repair_pending_count{0};  // lost chunks waiting for another attempt
};

// The values of ScrubCounters at one moment, field by field.
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
