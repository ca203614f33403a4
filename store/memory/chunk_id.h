// Chunk ids: SHA-256 over what determines a chunk's rows, chained through its parent.

#pragma once

#include <cstdint>
#include <span>

#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// The id of the chunk of `tokens` that follows `parent` (zero: it starts a chain) under the model
// whose ModelFingerprint is `fingerprint`. `position` is the canonical position of the chunk's own
// first token, ChunkInfo::position: for a chain's first chunk it is an input, since RoPE makes rows
// at another position differ; further down the chain implies it, and mixing it in makes a chunk
// that claims another one carry the wrong id.
//   SHA-256(11 as u64 | "ckv.chunk.1" | fingerprint | parent | position u64 | count u64 |
//           tokens i32[]), integers little-endian
ChunkId ComputeChunkId(const ChunkId& fingerprint, const ChunkId& parent, uint64_t position,
                       std::span<const int32_t> tokens);

}  // namespace ckv
