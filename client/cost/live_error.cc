#include "client/cost/live_error.h"

#include <algorithm>
#include <cmath>

namespace ckv {

void LiveError::Observe(double predicted_us, double measured_us) {
  if (!(predicted_us > 0) || !(measured_us > 0)) return;
  const double ratio = measured_us / predicted_us;
  if (!std::isfinite(ratio)) return;
  const uint32_t count = count_.load(std::memory_order_relaxed);
  ratios_[count % kSampleCountMax].store(static_cast<float>(ratio), std::memory_order_relaxed);
  const uint32_t next = count + 1;
  count_.store(next == 0 ? kSampleCountMax : next, std::memory_order_relaxed);
}

std::optional<double> LiveError::MedianOf(double (*figure)(double ratio)) const {
  const uint32_t count = std::min(count_.load(std::memory_order_relaxed), kSampleCountMax);
  if (count < kSampleCountMin) return std::nullopt;
  std::array<double, kSampleCountMax> figures;
  for (uint32_t i = 0; i < count; ++i)
    figures[i] = figure(ratios_[i].load(std::memory_order_relaxed));
  const auto middle = figures.begin() + count / 2;
  std::nth_element(figures.begin(), middle, figures.begin() + count);
  return *middle;
}

std::optional<double> LiveError::Median() const {
  return MedianOf([](double ratio) { return std::abs(ratio - 1); });
}

std::optional<double> LiveError::Ratio() const {
  return MedianOf([](double ratio) { return ratio; });
}

}  // namespace ckv
