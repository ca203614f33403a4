// How much slower or faster something is now than at its calibration.

#pragma once

#include <atomic>
#include <cstdint>

#include "client/cost/live_window.h"

namespace ckv {

// One factor, measured over predicted, updated by the replies that contain a kernel's time. A
// calibration is made on a quiet holder. The factor follows later changes: the clock rate, the
// number of threads, other requesters in its batches. It starts at 1. Thread-safe. LiveKernel
// (client/cost/live_kernel.h) has one for computing and one for memory.
//
// The second least ratio of every BestWindow::kCount samples is used. A step is at most a factor of
// 2, and the factor stays within [kFactorMin, kFactorMax]. So no single reply changes it, and a
// lasting change of 4 is followed in 32 requests.
class LiveCompute {
 public:
  // A base that was measured under load may be off by a factor of hundreds. Steps of 2 take ten
  // windows to either limit.
  static constexpr double kFactorMin = 1.0 / 1024;
  static constexpr double kFactorMax = 1024;

  // Takes one kernel call, which took `compute_us`. The constants without this factor predicted
  // `predicted_us`. Ignores anything that is not above 0 or not finite.
  void Observe(double predicted_us, double compute_us) {
    if (predicted_us > 0 && compute_us > 0) Follow(compute_us / predicted_us);
  }
  // Takes the factor of one call. Ignores one that is negative or not finite. 0 means that nothing
  // was left of what was predicted.
  void Follow(double factor) {
    if (!(factor >= 0) || !(factor <= kRatioMax)) return;
    const std::optional<double> measured = window_.Add(factor);
    if (!measured) return;
    factor_.store(std::clamp(LiveStep(Get(), *measured), kFactorMin, kFactorMax),
                  std::memory_order_relaxed);
  }
  // Returns the factor to multiply predicted times by.
  double Get() const { return factor_.load(std::memory_order_relaxed); }
  // Starts again at 1, because predictions use other constants from now on.
  void Reset() {
    window_.Clear();
    factor_.store(1, std::memory_order_relaxed);
  }

 private:
  static constexpr double kRatioMax = 1e12;  // finite, so that a window never holds an infinity

  BestWindow window_;
  std::atomic<double> factor_{1};
};

}  // namespace ckv
