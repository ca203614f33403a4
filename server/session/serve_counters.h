// What a holder counts of its data plane.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace ckv {

// Why a request was refused before any data was touched.
enum class Refusal : uint8_t {
  kQueueFull,  // as many requests wait as may
  kQueueWork,  // those that wait take longer than a wait may be
  kNoTime,     // or longer than this one has
  kDraining,
  kNoLease,
  kStaleSession,  // the lane is of another session, or of an earlier epoch
};
inline constexpr std::array<std::string_view, 6> kRefusalNames = {
    "queue_full", "queue_work", "no_time", "draining", "no_lease", "stale_session"};
using RefusalCounts = std::array<uint64_t, kRefusalNames.size()>;

// OK to Unauthenticated: one a code.
inline constexpr size_t kStatusCodeCount = 17;
using StatusCounts = std::array<uint64_t, kStatusCodeCount>;

// By FabricKind, whose values begin with 1.
inline constexpr size_t kFabricKindEnd = 5;

// What waits on a holder, in the order of server/dispatcher.h's queues.
inline constexpr std::array<std::string_view, 5> kQueueNames = {"attend", "bulk", "long", "push",
                                                                "cold"};
struct QueueDepth {
  uint32_t request_count = 0;
  uint64_t work = 0;  // multiply-adds, as estimated on arrival; pushes have none
};
using QueueDepths = std::array<QueueDepth, kQueueNames.size()>;

// Written by the dispatcher, read by anyone; each stands alone.
struct ServeCounters {
  std::atomic<uint64_t> request_count{0};  // frames that came: probes, too
  std::atomic<uint64_t> query_row_count{0};
  std::atomic<uint64_t> batch_count{0};        // kernel calls
  std::atomic<uint64_t> long_count{0};         // requests computed beside the polling thread
  std::atomic<uint64_t> push_count{0};         // replies to fetches that carried rows
  std::atomic<uint64_t> push_bytes{0};         // of those rows
  std::atomic<uint64_t> map_count{0};          // chunks handed over by descriptor
  std::atomic<uint64_t> cold_count{0};         // requests whose chunks were read from disk first
  std::atomic<uint64_t> approximate_count{0};  // requests answered with the help of shadows
  std::array<std::atomic<uint64_t>, kStatusCodeCount> errors{};  // answers, by code
  std::atomic<uint64_t> expired_count{0};
  std::array<std::atomic<uint64_t>, kRefusalNames.size()> refusals{};
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> compute_ns{0};
  std::atomic<uint64_t> sleep_count{0};  // times the dispatcher had nothing to poll for
  std::array<std::atomic<uint32_t>, kFabricKindEnd> lanes{};  // that are up, by fabric
};

// One writer, so that load and store need no read-modify-write.
inline void Bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

inline void BumpRefusal(ServeCounters& counters, Refusal why) {
  Bump(counters.refusals[static_cast<size_t>(why)]);
}

// What counters of one kind say, one by one.
template <typename T, size_t kCount>
std::array<T, kCount> ReadAll(const std::array<std::atomic<T>, kCount>& counters) {
  std::array<T, kCount> values;
  for (size_t i = 0; i < kCount; ++i) values[i] = counters[i].load(std::memory_order_relaxed);
  return values;
}

}  // namespace ckv
