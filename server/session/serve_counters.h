// Counters and gauges of a holder's data plane.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "proto/base/latency_histogram.h"
#include "server/session/load_samples.h"
#include "transport/fabric.h"

namespace ckv {

// Why a request was refused before any data was touched.
enum class Refusal : uint8_t {
  kQueueFull,     // the queue has reached its limit of requests
  kQueueWork,     // the queue has reached its limit of work
  kNoTime,        // the queue's work takes longer than this request's remaining time
  kDraining,      // the holder is about to stop
  kNoLease,       // the holder has no live lease
  kStaleSession,  // the request names another session, or an epoch other than the holder's
};
inline constexpr std::array<std::string_view, 6> kRefusalNames = {
    "queue_full", "queue_work", "no_time", "draining", "no_lease", "stale_session"};
using RefusalCounts = std::array<uint64_t, kRefusalNames.size()>;

// Status codes from OK to Unauthenticated; a code is the index.
inline constexpr size_t kStatusCodeCount = 17;
using StatusCounts = std::array<uint64_t, kStatusCodeCount>;

// The queues in which a holder's requests wait; server/dispatch/dispatcher.h has a diagram.
enum class QueueKind : uint8_t { kAttend, kBulk, kLong, kPush, kCold };
inline constexpr std::array<std::string_view, 5> kQueueNames = {"attend", "bulk", "long", "push",
                                                                "cold"};
inline constexpr size_t kQueueCount = kQueueNames.size();
struct QueueDepth {
  uint32_t request_count = 0;  // requests that wait
  uint64_t work = 0;           // their multiply-adds, as estimated on arrival; pushes have none
};
// A QueueDepth that the queue's owner writes and any thread reads. The two numbers may differ by a
// request that enters or leaves the queue between the two reads.
struct QueueGauge {
  std::atomic<uint32_t> request_count{0};
  std::atomic<uint64_t> work{0};
};
using QueueDepths = std::array<QueueDepth, kQueueCount>;

// Written by the dispatcher's thread, read by any thread. Counters are independent: reading several
// gives no consistent snapshot. HolderStats (server/holder/holder.h) documents each field.
struct ServeCounters {
  std::atomic<uint64_t> request_count{0};      // frames received, probes included
  std::atomic<uint64_t> query_row_count{0};    // query rows of attends taken into a batch
  std::atomic<uint64_t> batch_count{0};        // kernel calls
  std::atomic<uint64_t> long_count{0};         // requests computed on the side thread
  std::atomic<uint64_t> push_count{0};         // replies to fetches that carried rows
  std::atomic<uint64_t> push_bytes{0};         // bytes of those rows
  std::atomic<uint64_t> map_count{0};          // chunks handed over by descriptor
  std::atomic<uint64_t> score_count{0};        // score requests answered
  std::atomic<uint64_t> score_key_count{0};    // index keys scored, for each token of a request
  std::atomic<uint64_t> cold_count{0};         // reads from disk for a waiting request
  std::atomic<uint64_t> stripe_hit_count{0};   // stripes of selections found in the cache
  std::atomic<uint64_t> stripe_read_count{0};  // stripes of selections read from disk
  std::atomic<uint64_t> stripe_bytes{0};       // memory of the stripe cache now
  std::atomic<uint64_t> approximate_count{0};  // requests answered with the use of shadows
  std::array<std::atomic<uint64_t>, kStatusCodeCount> errors{};  // error answers by code
  std::atomic<uint64_t> expired_count{0};  // requests whose deadline passed before their answer
  std::array<std::atomic<uint64_t>, kRefusalNames.size()> refusals{};  // by Refusal
  std::atomic<uint64_t> bytes_in{0};                                   // bytes of requests received
  std::atomic<uint64_t> bytes_out{0};                                  // bytes of replies posted
  std::atomic<uint64_t> compute_ns{0};                         // time spent computing batches
  std::atomic<uint64_t> sleep_count{0};                        // times the dispatcher slept
  std::atomic<uint64_t> turn_count{0};                         // iterations of its loop
  std::array<QueueGauge, kQueueCount> queues{};                // by QueueKind
  std::array<std::atomic<uint32_t>, kFabricKindEnd> lanes{};   // lanes that are up, by fabric
  LatencyHistogram kernel, attend_wait, push_wait, cold_read;  // see HolderLatency
  LoadSamples load;
};

// The durations of a holder's work since its start.
struct HolderLatency {
  LatencyCounts kernel;       // the kernel calls of one batch, together
  LatencyCounts attend_wait;  // attends, from their arrival to the start of their kernel calls
  LatencyCounts push_wait;    // fetches, from their arrival to the start of their answer
  LatencyCounts cold_read;    // reads from disk for one request

  // Calls `visit` with each display name and its counts.
  template <typename Visit>
  void ForEach(Visit visit) const {
    visit("kernel", kernel);
    visit("wait", attend_wait);
    visit("push wait", push_wait);
    visit("load", cold_read);
  }
};

// Adds to a counter that one thread writes: a load and a store, no read-modify-write.
inline void Bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

inline void BumpRefusal(ServeCounters& counters, Refusal why) {
  Bump(counters.refusals[static_cast<size_t>(why)]);
}

// Returns the values of an array of counters, read one by one.
template <typename T, size_t kCount>
std::array<T, kCount> ReadAll(const std::array<std::atomic<T>, kCount>& counters) {
  std::array<T, kCount> values;
  for (size_t i = 0; i < kCount; ++i) values[i] = counters[i].load(std::memory_order_relaxed);
  return values;
}

inline HolderLatency ReadLatency(const ServeCounters& counters) {
  return {counters.kernel.Read(), counters.attend_wait.Read(), counters.push_wait.Read(),
          counters.cold_read.Read()};
}

inline QueueDepths ReadDepths(const ServeCounters& counters) {
  QueueDepths depths;
  for (size_t i = 0; i < depths.size(); ++i) {
    depths[i] = {counters.queues[i].request_count.load(std::memory_order_relaxed),
                 counters.queues[i].work.load(std::memory_order_relaxed)};
  }
  return depths;
}

}  // namespace ckv
