#include "client/learn/live_error.h"

#include <algorithm>
#include <cmath>

namespace ckv {

void LiveError::Observe(double predicted_us, double measured_us) {
  if (!(predicted_us > 0) || !(measured_us > 0)) return;
  const double error = std::abs(measured_us / predicted_us - 1);
  if (!std::isfinite(error)) return;
  const uint32_t count = count_.load(std::memory_order_relaxed);
  errors_[count % kSampleCountMax].store(static_cast<float>(error), std::memory_order_relaxed);
  const uint32_t next = count + 1;
  count_.store(next == 0 ? kSampleCountMax : next, std::memory_order_relaxed);
}

std::optional<double> LiveError::Median() const {
  const uint32_t count = std::min(count_.load(std::memory_order_relaxed), kSampleCountMax);
  if (count < kSampleCountMin) return std::nullopt;
  std::array<float, kSampleCountMax> errors;
  for (uint32_t i = 0; i < count; ++i) errors[i] = errors_[i].load(std::memory_order_relaxed);
  const auto middle = errors.begin() + count / 2;
  std::nth_element(errors.begin(), middle, errors.begin() + count);
  return *middle;
}

}  // namespace ckv
