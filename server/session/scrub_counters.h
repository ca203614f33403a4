// Counters of a holder's background checks and repairs of its store.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Written by the threads of the scrubber and the repairer, read by any thread. Counters are
// independent: reading several gives no consistent snapshot.
struct ScrubCounters {
  std::atomic<uint64_t> checked_bytes{0};         // bytes checked, in memory and on disk
  std::atomic<uint64_t> pass_count{0};            // completed passes over all chunks
  std::atomic<uint64_t> unreadable_count{0};      // chunks whose file the device could not read
  std::atomic<uint64_t> repaired_count{0};        // lost chunks that are here again
  std::atomic<uint64_t> repair_failure_count{0};  // lost chunks given up: no replica provided them
  std::atomic<uint64_t> repair_pending_count{0};  // lost chunks waiting for another attempt
};

// The values of ScrubCounters, each read separately.
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
