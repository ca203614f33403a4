// What a holder counts of its data plane.

#pragma once

#include <atomic>
#include <cstdint>

namespace ckv {

// Written by the dispatcher, read by anyone; each stands alone.
struct ServeCounters {
  std::atomic<uint64_t> request_count{0};  // frames that came: probes, too
  std::atomic<uint64_t> query_row_count{0};
  std::atomic<uint64_t> batch_count{0};  // kernel calls
  std::atomic<uint64_t> long_count{0};   // requests computed beside the polling thread
  std::atomic<uint64_t> push_count{0};   // replies to fetches that carried rows
  std::atomic<uint64_t> map_count{0};    // chunks handed over by descriptor
  std::atomic<uint64_t> error_count{0};
  std::atomic<uint64_t> expired_count{0};
  std::atomic<uint64_t> refused_count{0};  // for a full queue
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> compute_ns{0};
  std::atomic<uint64_t> sleep_count{0};  // times the dispatcher had nothing to poll for
  std::atomic<uint32_t> lane_count{0};
};

// One writer, so that load and store need no read-modify-write.
inline void Bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace ckv
