// The second least of every 16 samples, which moves a live constant by limited steps. Also detects
// that samples and a constant are too far apart for steps.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

namespace ckv {

// Returns the second least of every kCount samples. A disturbance (a wake-up, a scheduler pause,
// another requester's rows in the kernel's batch) only adds time, so the least samples are the true
// ones. The second least is used, so that no single sample decides. Thread-safe. All accesses are
// relaxed, because a lost race loses one sample.
class BestWindow {
 public:
  static constexpr uint32_t kCount = 16;

  // Returns the second least of kCount samples if this one completes them, or nothing.
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

// A measured constant moves by at most a factor of 2 at a time, so it follows a real change within
// a few windows. A false one has moved it little when the next window corrects it.
inline constexpr double kLiveStepMax = 2;
inline double LiveStep(double known, double measured) {
  return std::clamp(measured, known / kLiveStepMax, known * kLiveStepMax);
}

// Detects a measured constant that cannot be right: many samples in a row are off by more than a
// factor, all to one side. Steps would follow in the end. But a base that was measured under load
// may also have the wrong shape, which no factor repairs. Thread-safe; a lost race loses one
// sample.
class DoubtCount {
 public:
  // The model is off by 12 % over all query counts (deploy/bench.sh decision), and a machine's slow
  // moments are 20 %. A factor of 2 is neither.
  static constexpr double kFactor = 2;
  // As many as a window has: the steps of one window have not helped.
  static constexpr int32_t kCount = 16;

  // Takes one sample. Returns true if it is the kCount-th in a row, and then starts counting again.
  // Ignores a sample or an expectation that is not above 0.
  bool Add(double expected, double sample) {
    if (!(expected > 0) || !(sample > 0)) return false;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    const int32_t seen = in_row_.load(kRelaxed);
    int32_t next = 0;
    if (sample > expected * kFactor) next = std::max(seen, 0) + 1;
    if (sample * kFactor < expected) next = std::min(seen, 0) - 1;
    const bool full = next >= kCount || next <= -kCount;
    if (next != seen) in_row_.store(full ? 0 : next, kRelaxed);
    return full;
  }
  void Clear() { in_row_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<int32_t> in_row_{0};  // above 0: longer than expected; below: shorter
};

}  // namespace ckv
