// Measures how far the cost model was off lately.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace ckv {

// Keeps measured / predicted of the last kSampleCountMax requests. Thread-safe: a sample costs two
// relaxed loads and two stores, and a lost race loses a sample.
class LiveError {
 public:
  static constexpr uint32_t kSampleCountMax = 64;
  // Fewer samples say nothing: a requester that has just started finds its caches cold.
  static constexpr uint32_t kSampleCountMin = 16;

  // Takes one request. Anything not above 0 is ignored.
  void Observe(double predicted_us, double measured_us);
  // Return the median of |measured / predicted - 1|, and of measured / predicted. Nothing before
  // kSampleCountMin samples. They sort a copy, so they are for people and metrics.
  std::optional<double> Median() const;
  std::optional<double> Ratio() const;

 private:
  std::optional<double> MedianOf(double (*figure)(double ratio)) const;

  std::array<std::atomic<float>, kSampleCountMax> ratios_{};
  std::atomic<uint32_t> count_{0};  // counts all samples; wraps to kSampleCountMax, never below
};

}  // namespace ckv
