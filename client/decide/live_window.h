// Gives the second best of every 16 samples, by which a live constant is stepped.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

namespace ckv {

// A disturbance (a wake-up, a scheduler pause, a neighbour in the kernel's batch) only adds time,
// so the least samples are the true ones. The second least is used, so that no single sample is
// believed. Thread-safe; all accesses are relaxed, because a lost race loses one sample.
class BestWindow {
 public:
  static constexpr uint32_t kCount = 16;

  // Returns the second least of kCount samples if this one completes them, else nothing.
  std::optional<double> Add(double sample) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    const uint32_t seen = count_.load(kRelaxed);
    const double first = best_.load(kRelaxed);
    double next = second_.load(kRelaxed);
    if (seen == 0 || sample < first) {
      next = seen == 0 ? std::numeric_limits<double>::infinity() : first;
      best_.store(sample, kRelaxed);
    } else if (sample < next) {
      next = sample;
    }
    second_.store(next, kRelaxed);
    const bool full = seen + 1 >= kCount;
    count_.store(full ? 0 : seen + 1, kRelaxed);
    return full ? std::optional(next) : std::nullopt;
  }
  void Clear() { count_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<double> best_{0}, second_{0};  // the two least since a window was last full
};

// A measured constant moves by at most a factor of 2 at a time. A true change is followed in a few
// windows. A false one has moved little when the next window corrects it.
inline constexpr double kLiveStepMax = 2;
inline double LiveStep(double known, double measured) {
  return std::clamp(measured, known / kLiveStepMax, known * kLiveStepMax);
}

}  // namespace ckv
