// Sums of sizes that peers name: they stop at the largest value instead of wrapping.

#pragma once

#include <cstddef>
#include <limits>

namespace ckv {

inline constexpr size_t kSaturated = std::numeric_limits<size_t>::max();

constexpr size_t SaturatingAdd(size_t a, size_t b) {
  return a > kSaturated - b ? kSaturated : a + b;
}

constexpr size_t SaturatingMultiply(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kSaturated : product;
}

// `multiple` is a power of two.
constexpr size_t SaturatingRoundUp(size_t bytes, size_t multiple) {
  const size_t rounded = SaturatingAdd(bytes, multiple - 1);
  return rounded == kSaturated ? kSaturated : rounded & ~(multiple - 1);
}

}  // namespace ckv
