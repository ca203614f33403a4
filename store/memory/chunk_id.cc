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

}  // namespace ckv
