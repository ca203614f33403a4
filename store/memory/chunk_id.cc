#include "store/memory/chunk_id.h"

#include <string>

#include "proto/base/sha256.h"

namespace ckv {

ChunkId ComputeChunkId(const ChunkId& fingerprint, const ChunkId& parent, uint64_t position,
                       std::span<const int32_t> tokens, std::span<const ExtraKey> extra_keys) {
  Sha256 sha;
  sha.AppendString(extra_keys.empty() ? "ckv.chunk.1" : "ckv.chunk.3");
  sha.Append(std::as_bytes(std::span(fingerprint.bytes)));
  sha.Append(std::as_bytes(std::span(parent.bytes)));
  sha.AppendValue(position);
  sha.AppendValue(uint64_t{tokens.size()});
  sha.Append(std::as_bytes(tokens));
  const std::string keys = EncodeExtraKeys(extra_keys);
  sha.Append(std::as_bytes(std::span(keys)));
  return ChunkId{sha.Finish()};
}

VerificationTag VerificationTagOf(const ChunkId& plain, const TenantKey& key) {
  if (key.IsZero()) return {};
  return VerificationTag{HmacSha256(key.bytes, std::as_bytes(std::span(plain.bytes)))};
}

ChunkId TaggedChunkId(const ChunkId& plain, const VerificationTag& verification_tag) {
  if (verification_tag.IsZero()) return plain;
  Sha256 sha;
  sha.AppendString("ckv.chunk.2");
  sha.Append(std::as_bytes(std::span(plain.bytes)));
  sha.Append(std::as_bytes(std::span(verification_tag.bytes)));
  return ChunkId{sha.Finish()};
}

}  // namespace ckv
