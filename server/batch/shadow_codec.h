// Packs bf16 rows as fp8_ds_mla for shadows: 656 bytes instead of 1152 for DeepSeek.

#pragma once

#include "store/memory/shadow_table.h"

namespace ckv {

// A codec for bf16 rows with d_v % 128 = 0 and d_qk = d_v + d_rope; it packs no others
// (PackedRowBytes is zero). Each 128 latent values become e4m3 with one scale. Their error is at
// most 1/16 of a value (2^-4, half of the last of 3 bits). The RoPE band is kept as it is. The
// codec lives as long as the process.
const ShadowCodec* Fp8ShadowCodec();

}  // namespace ckv
