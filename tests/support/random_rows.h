// Random rows and index keys.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "proto/geometry.h"

namespace ckv::test {

// `count` bf16 values, uniform in [-amplitude, amplitude].
inline std::vector<uint16_t> RandomBf16(size_t count, std::mt19937& rng, float amplitude = 1.0f) {
  std::uniform_real_distribution<float> value(-amplitude, amplitude);
  std::vector<uint16_t> out(count);
  for (uint16_t& v : out) v = Bf16FromFloat(value(rng));
  return out;
}

// `count` keys as stored. Their values are finite and their scales positive.
inline std::vector<uint16_t> RandomIndexKeys(const IndexShape& index, size_t count,
                                             std::mt19937& rng) {
  if (index.dtype == IndexDtype::kBf16) return RandomBf16(count * index.dim, rng);
  std::vector<uint16_t> keys(count * index.key_bytes() / sizeof(uint16_t));
  auto* const bytes = reinterpret_cast<uint8_t*>(keys.data());
  std::uniform_real_distribution<float> scale(0.001f, 0.01f);
  for (size_t i = 0; i < count; ++i) {
    uint8_t* const key = bytes + i * index.key_bytes();
    for (uint32_t v = 0; v < index.dim; ++v) {
      key[v] = static_cast<uint8_t>(rng());
      // e4m3 has NaN and no infinity.
      if (index.dtype == IndexDtype::kFp8 && (key[v] & 0x7f) == 0x7f) --key[v];
    }
    const float one = scale(rng);
    std::memcpy(key + index.dim, &one, sizeof(one));
  }
  return keys;
}

}  // namespace ckv::test
