// Counts how far measured times were from predicted ones.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckv {

// Counts of measured / predicted. Bucket i counts ratios of at most kBounds[i] that no bucket
// before it counts; the last one counts all that are larger.
struct RatioCounts {
  // About even in both directions from 1, where the model is right.
  static constexpr std::array<double, 11> kBounds = {.25, .5, .67, .8, .9, 1, 1.1, 1.25, 1.5, 2, 4};

  std::array<uint64_t, kBounds.size() + 1> counts{};
  double sum = 0;

  void Add(const RatioCounts& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum += other.sum;
  }
};

// Thread-safe and without locks; a lost race loses a sample of the sum.
class RatioHistogram {
 public:
  // Anything not above 0 is ignored.
  void Observe(double predicted_us, double measured_us) {
    if (!(predicted_us > 0) || !(measured_us > 0)) return;
    const double ratio = measured_us / predicted_us;
    const auto bound =
        std::lower_bound(RatioCounts::kBounds.begin(), RatioCounts::kBounds.end(), ratio);
    counts_[static_cast<size_t>(bound - RatioCounts::kBounds.begin())].fetch_add(
        1, std::memory_order_relaxed);
    sum_.store(sum_.load(std::memory_order_relaxed) + ratio, std::memory_order_relaxed);
  }
  RatioCounts Read() const {
    RatioCounts read;
    for (size_t i = 0; i < counts_.size(); ++i)
      read.counts[i] = counts_[i].load(std::memory_order_relaxed);
    read.sum = sum_.load(std::memory_order_relaxed);
    return read;
  }

 private:
  std::array<std::atomic<uint64_t>, RatioCounts::kBounds.size() + 1> counts_{};
  std::atomic<double> sum_{0};
};

}  // namespace ckv
