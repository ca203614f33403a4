// The second best of every so many samples: what a live constant is stepped by.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

namespace ckv {

// What disturbs a request (a wake-up, a scheduler pause, a neighbour in the kernel's batch) only
// ever adds to it, so the least samples are the true ones; the second least, so that no single one
// is believed. Thread-safe; relaxed throughout, for a lost race loses a sample.
class BestWindow {
 public:
  static constexpr uint32_t kCount = 16;

  // The second least of the kCount samples that this one makes full; else nothing.
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
  std::atomic<double> best_{0}, second_{0};  // of those since the last that was full
};

// A measured constant moves by a factor of 2 at most at a time: what is true is followed in a few
// windows, what is not has moved little when the next window says so.
inline constexpr double kLiveStepMax = 2;
inline double LiveStep(double known, double measured) {
  return std::clamp(measured, known / kLiveStepMax, known * kLiveStepMax);
}

}  // namespace ckv
