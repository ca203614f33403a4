// How much slower or faster a holder's kernel is now than its calibration said.

#pragma once

#include <atomic>
#include <cstdint>

#include "client/live_window.h"

namespace ckv {

// One factor, measured over predicted, kept true by the replies that carry a kernel's time. A
// calibration is made on a quiet holder; this follows what became of it since: another clock rate,
// a thread more or less, other requesters in its batches. Starts at 1. Thread-safe.
//
// Of every BestWindow::kCount samples the second least ratio is taken, a step is a factor of 2 at
// most, and the factor stays within [kFactorMin, kFactorMax]: so no single reply moves it, and a
// lasting change of 4 is followed in 32 requests.
class LiveCompute {
 public:
  // What is off by more is not the holder that was calibrated: the model error says so.
  static constexpr double kFactorMin = 1.0 / 16;
  static constexpr double kFactorMax = 16;

  // A kernel call of one request that was under way alone took `compute_us`, where the constants
  // without this factor said `predicted_us`. Anything not above 0, or not finite, is ignored.
  void Observe(double predicted_us, double compute_us) {
    if (!(predicted_us > 0) || !(compute_us > 0)) return;
    const double ratio = compute_us / predicted_us;
    if (!(ratio <= kRatioMax)) return;
    const std::optional<double> measured = window_.Add(ratio);
    if (!measured) return;
    factor_.store(std::clamp(LiveStep(Get(), *measured), kFactorMin, kFactorMax),
                  std::memory_order_relaxed);
  }
  // To multiply predicted times by.
  double Get() const { return factor_.load(std::memory_order_relaxed); }
  // Other constants are predicted with from now on.
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
