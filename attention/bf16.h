// bfloat16 as stored in memory: the upper 16 bits of a binary32.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace ckv {

// Rounds to nearest, ties to even. NaN stays NaN (quiet), and overflow rounds to infinity.
// Truncation would only double the error, so no tolerance would catch it. bf16_test checks every
// tie.
constexpr uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Convert arrays; `in` and `out` must not overlap. Vectorised if the machine supports it, with the
// same results.
void Bf16FromFloats(const float* in, uint16_t* out, size_t count) noexcept;
void FloatsFromBf16(const uint16_t* in, float* out, size_t count) noexcept;

}  // namespace ckv
