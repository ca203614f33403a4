#include "attention/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/bf16.h"

namespace ckv {
namespace {

constexpr float kE4m3Max = 448;
constexpr float kE4m3MinNormal = 0x1p-6f;

// 2^ceil(log2(max(amax / 448, 1e-4))).
float ScaleOf(const float* values) {
  float amax = 0;
  for (uint32_t i = 0; i < kFp8ScaleGroup; ++i) amax = std::max(amax, std::fabs(values[i]));
  // An infinite value saturates under the largest scale; it must not make the scale infinite.
  amax = std::min(amax, std::numeric_limits<float>::max());
  int exponent = 0;
  const float fraction = std::frexp(std::max(amax / kE4m3Max, 1e-4f), &exponent);
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

}  // namespace

uint8_t E4m3FromFloat(float value) noexcept {
  if (value != value) return 0x7f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude >= kE4m3Max) return sign | 0x7e;
  if (magnitude < kE4m3MinNormal) {
    // The step here is 2^-9, the step of f32 at 2^14: adding 2^14 rounds to nearest even.
    const float shifted = magnitude + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) & 0xfu);
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);
  // Exponent bias 127 to 7. Rounding below 448 never passes 448, so there is no overflow left.
  return sign | static_cast<uint8_t>((rounded >> 20) - ((127u - 7u) << 3));
}

float FloatFromE4m3(uint8_t bits) noexcept {
  const uint32_t magnitude = bits & 0x7fu;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(0x7fc00000u | sign);
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

void PackFp8DsMlaRow(const float* row, uint32_t d_v, uint32_t d_rope, uint8_t* out) noexcept {
  for (uint32_t group = 0; group < d_v / kFp8ScaleGroup; ++group) {
    const float* values = row + group * kFp8ScaleGroup;
    const float scale = ScaleOf(values);
    for (uint32_t i = 0; i < kFp8ScaleGroup; ++i) {
      out[group * kFp8ScaleGroup + i] = E4m3FromFloat(values[i] / scale);
    }
    std::memcpy(out + d_v + group * sizeof(float), &scale, sizeof(scale));
  }
  uint8_t* band = out + d_v + d_v / kFp8ScaleGroup * sizeof(float);
  for (uint32_t i = 0; i < d_rope; ++i) {
    const uint16_t bits = Bf16FromFloat(row[d_v + i]);
    std::memcpy(band + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace ckv
