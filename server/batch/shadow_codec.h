// Shadows of bf16 rows as fp8_ds_mla: 656 bytes where 1152 were, for DeepSeek.

#pragma once

#include "store/shadow_table.h"

namespace ckv {

// Packs bf16 rows with d_v % 128 = 0 and d_qk = d_v + d_rope: e4m3 values with one scale for 128 of
// them, whose error is at most 1/16 of a value (2^-4, half of the last of 3 bits), and the RoPE
// band as it is. Lives as long as the process.
const ShadowCodec* Fp8ShadowCodec();

}  // namespace ckv
