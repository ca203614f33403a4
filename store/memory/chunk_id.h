// Chunk ids: SHA-256 over what determines a chunk's rows, chained through its parent; keyed for the
// chunks of one tenant.

#pragma once

#include <cstdint>
#include <span>

#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// Returns the id of the chunk of `tokens` that follows `parent`, under the model whose
// ModelFingerprint is `fingerprint`. A zero parent starts a chain. `position` is the canonical
// position of the chunk's first token (ChunkInfo::position). A chain's first chunk needs it,
// because RoPE makes rows at another position differ. For later chunks the chain implies it;
// hashing it gives a chunk that claims another position the wrong id.
//   SHA-256(11 as u64 | "ckv.chunk.1" | fingerprint | parent | position u64 | count u64 |
//           tokens i32[]), integers little-endian
// `extra_keys` must be valid (ValidateExtraKeys), with positions counted from the chunk's first
// token. If there are any, the text is "ckv.chunk.3", and the bytes of EncodeExtraKeys follow the
// tokens. So a chunk with another image, another position of it, another adapter or no keys has a
// different id.
ChunkId ComputeChunkId(const ChunkId& fingerprint, const ChunkId& parent, uint64_t position,
                       std::span<const int32_t> tokens, std::span<const ExtraKey> extra_keys = {});

// Returns the verification tag of a chunk under a tenant's key. `plain` is the chunk's
// ComputeChunkId, computed with the keyed id of its parent. The zero key gives the zero tag.
//   HMAC-SHA-256(key, plain)
VerificationTag VerificationTagOf(const ChunkId& plain, const TenantKey& key);

// Returns the id of a chunk with this verification tag. The zero tag gives `plain` itself. Without
// the key, the id cannot be derived from the tokens. With any key or tag, it is infeasible to
// produce an id chosen in advance.
//   SHA-256(11 as u64 | "ckv.chunk.2" | plain | verification_tag)
ChunkId TaggedChunkId(const ChunkId& plain, const VerificationTag& verification_tag);

}  // namespace ckv
