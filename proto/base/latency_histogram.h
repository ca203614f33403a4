// Counts durations in buckets that double, for percentiles of what a process did.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "proto/base/clock.h"

namespace ckv {

// The counts of a histogram. Bucket i counts durations of at most kFirst * 2^i that no bucket
// before it counts; the last one counts all that are longer.
struct LatencyCounts {
  // 1 us to 33.6 s: from a lane's round trip to a fetch over a slow network.
  static constexpr Duration kFirst = std::chrono::microseconds(1);
  static constexpr size_t kBucketCount = 27;

  std::array<uint64_t, kBucketCount> counts{};
  uint64_t sum_ns = 0;

  // The longest duration of bucket i, which must not be the last.
  static constexpr Duration Bound(size_t i) { return kFirst * (int64_t{1} << i); }
  // The bucket of a duration; a negative one is in the first.
  static size_t BucketOf(Duration took) {
    const int64_t over = (took.count() - 1) / kFirst.count();  // whole units before the last
    if (over <= 0) return 0;
    return std::min<size_t>(static_cast<size_t>(std::bit_width(static_cast<uint64_t>(over))),
                            kBucketCount - 1);
  }
  void Add(Duration took) {
    ++counts[BucketOf(took)];
    sum_ns += static_cast<uint64_t>(std::max<int64_t>(took.count(), 0));
  }
  uint64_t total() const {
    uint64_t total = 0;
    for (const uint64_t count : counts) total += count;
    return total;
  }
  // Returns the duration that a share of all, from 0 to 1, do not exceed. Within a bucket they are
  // taken to be spread evenly, so it is off by less than a factor of 2. Returns 0 if there are
  // none, and the last bound for the last bucket.
  Duration Quantile(double share) const {
    const auto total_count = static_cast<double>(total());
    if (total_count == 0) return Duration(0);
    double before = 0;
    for (size_t i = 0; i + 1 < kBucketCount; ++i) {
      const auto here = static_cast<double>(counts[i]);
      if (here > 0 && before + here >= share * total_count) {
        const double low = i == 0 ? 0 : static_cast<double>(Bound(i - 1).count());
        const double high = static_cast<double>(Bound(i).count());
        const double within = std::max(0.0, share * total_count - before) / here;
        return Duration(static_cast<int64_t>(low + within * (high - low)));
      }
      before += here;
    }
    return Bound(kBucketCount - 2);
  }
};

// Thread-safe and without locks. Read gives no snapshot: durations that are added meanwhile may be
// in the counts and not in the sum.
class LatencyHistogram {
 public:
  // From any thread: two atomic additions.
  void Add(Duration took) {
    counts_[LatencyCounts::BucketOf(took)].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(Nanoseconds(took), std::memory_order_relaxed);
  }
  // For a histogram that one thread adds to: no read-modify-write.
  void AddAlone(Duration took) {
    std::atomic<uint64_t>& count = counts_[LatencyCounts::BucketOf(took)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    sum_ns_.store(sum_ns_.load(std::memory_order_relaxed) + Nanoseconds(took),
                  std::memory_order_relaxed);
  }
  LatencyCounts Read() const {
    LatencyCounts read;
    for (size_t i = 0; i < counts_.size(); ++i)
      read.counts[i] = counts_[i].load(std::memory_order_relaxed);
    read.sum_ns = sum_ns_.load(std::memory_order_relaxed);
    return read;
  }

 private:
  static uint64_t Nanoseconds(Duration took) {
    return static_cast<uint64_t>(std::max<int64_t>(took.count(), 0));
  }

  std::array<std::atomic<uint64_t>, LatencyCounts::kBucketCount> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

}  // namespace ckv
