// OCP e4m3 (no infinity, one NaN, max 448), and the fp8_ds_mla row that consists of it.

#pragma once

#include <cstdint>

namespace ckv {

inline constexpr uint32_t kFp8ScaleGroup = 128;  // e4m3 values that share a scale

// Rounds to nearest, ties to even. Saturates at +-448; NaN becomes 0x7f.
uint8_t E4m3FromFloat(float value) noexcept;
float FloatFromE4m3(uint8_t bits) noexcept;

// Converts one fp8_ds_mla row: d_v e4m3 values, then d_v / 128 f32 scales, then d_rope bf16 values.
// For DeepSeek that is 512 + 16 + 128 = 656 bytes. The kernel accepts scales below 2^120. A scale
// is 2^ceil(log2(max(amax / 448, 1e-4))), the power of two that FlashMLA uses. So dequantisation is
// exact in f32. d_v is a multiple of 128.
//   row        f32 [d_v + d_rope]    read
//   out        656 bytes             written, any alignment
void PackFp8DsMlaRow(const float* row, uint32_t d_v, uint32_t d_rope, uint8_t* out) noexcept;

}  // namespace ckv
