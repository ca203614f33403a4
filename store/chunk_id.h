// Chunk ids: SHA-256 over what determines a chunk's rows, chained through its parent.

#pragma once

#include <cstdint>
#include <span>

#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// The id of the chunk of `tokens` that follows `parent` (zero: it starts a chain) under the model
// whose ModelFingerprint is `fingerprint`. The position is implied by the chain; a first chunk at a
// position other than 0 mixes it in, since RoPE makes its rows differ.
//   SHA-256("ckv.chunk.1" | fingerprint | parent | base_position u64 | count u64 | tokens i32[])
ChunkId ComputeChunkId(const ChunkId& fingerprint, const ChunkId& parent, uint64_t base_position,
                       std::span<const int32_t> tokens);

}  // namespace ckv
