#include "store/memory/chunk_id.h"

#include "proto/base/sha256.h"

namespace ckv {

ChunkId ComputeChunkId(const ChunkId& fingerprint, const ChunkId& parent, uint64_t position,
                       std::span<const int32_t> tokens) {
  Sha256 sha;
  sha.AppendString("ckv.chunk.1");
  sha.Append(std::as_bytes(std::span(fingerprint.bytes)));
  sha.Append(std::as_bytes(std::span(parent.bytes)));
  sha.AppendValue(position);
  sha.AppendValue(uint64_t{tokens.size()});
  sha.Append(std::as_bytes(tokens));
  return ChunkId{sha.Finish()};
}

ChunkSeal SealOf(const ChunkId& plain, const TenantKey& key) {
  if (key.IsZero()) return {};
  return ChunkSeal{HmacSha256(key.bytes, std::as_bytes(std::span(plain.bytes)))};
}

ChunkId SealedChunkId(const ChunkId& plain, const ChunkSeal& seal) {
  if (seal.IsZero()) return plain;
  Sha256 sha;
  sha.AppendString("ckv.chunk.2");
  sha.Append(std::as_bytes(std::span(plain.bytes)));
  sha.Append(std::as_bytes(std::span(seal.bytes)));
  return ChunkId{sha.Finish()};
}

}  // namespace ckv
