// Reads an fp8_ds_mla row back: the reference for what packs one.

#pragma once

#include <cstdint>
#include <cstring>

#include "attention/bf16.h"
#include "attention/fp8.h"

namespace ckv::test {

// `in` is a row of PackFp8DsMlaRow, at any address; `row` takes d_v + d_rope values.
inline void UnpackFp8DsMlaRow(const uint8_t* in, uint32_t d_v, uint32_t d_rope, float* row) {
  for (uint32_t i = 0; i < d_v; ++i) {
    float scale;
    std::memcpy(&scale, in + d_v + i / kFp8ScaleGroup * sizeof(scale), sizeof(scale));
    row[i] = FloatFromE4m3(in[i]) * scale;
  }
  const uint8_t* band = in + d_v + d_v / kFp8ScaleGroup * sizeof(float);
  for (uint32_t i = 0; i < d_rope; ++i) {
    uint16_t bits;
    std::memcpy(&bits, band + i * sizeof(bits), sizeof(bits));
    row[d_v + i] = FloatFromBf16(bits);
  }
}

}  // namespace ckv::test
