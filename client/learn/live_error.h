// Measures how far the cost model was off lately.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace ckv {

// The median of |measured / predicted - 1| over the last kSampleCountMax requests. Thread-safe: a
// sample costs two relaxed loads and two stores, and a lost race loses a sample.
class LiveError {
 public:
  static constexpr uint32_t kSampleCountMax = 64;
  // Fewer samples say nothing: a requester that has just started finds its caches cold.
  static constexpr uint32_t kSampleCountMin = 16;

  // Takes one request. Anything not above 0 is ignored.
  void Observe(double predicted_us, double measured_us);
  // Returns nothing before kSampleCountMin samples. It sorts a copy, so it is for people and
  // metrics.
  std::optional<double> Median() const;

 private:
  std::array<std::atomic<float>, kSampleCountMax> errors_{};
  std::atomic<uint32_t> count_{0};  // counts all samples; wraps to kSampleCountMax, never below
};

}  // namespace ckv
