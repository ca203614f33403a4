// Chunk ids: SHA-256 over what determines a chunk's rows, chained through its parent.

#pragma once

#include <cstdint>
#include <span>

#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// Returns the id of the chunk of `tokens` that follows `parent`, under the model whose
// ModelFingerprint is `fingerprint`. A zero parent starts a chain. `position` is the canonical
// position of the chunk's first token (ChunkInfo::position). It is an input of a chain's first
// chunk, because RoPE makes rows at another position differ. For later chunks the chain implies it;
// as part of the hash it makes a chunk that claims another position carry the wrong id.
//   SHA-256(11 as u64 | "ckv.chunk.1" | fingerprint | parent | position u64 | count u64 |
//           tokens i32[]), integers little-endian
ChunkId ComputeChunkId(const ChunkId& fingerprint, const ChunkId& parent, uint64_t position,
                       std::span<const int32_t> tokens);

}  // namespace ckv
