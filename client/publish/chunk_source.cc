#include "client/publish/chunk_source.h"

#include <utility>

namespace ckv {

uint64_t ChunkSource::token_count() const {
  uint64_t count = 0;
  for (const PlannedChunk& chunk : chunks_) count += chunk.token_count;
  return count;
}

uint64_t ChunkSource::row_bytes() const { return token_count() * geometry_.token_bytes(); }

void ChunkSource::NameAsPlanned(uint32_t ordinal, ChunkInfo& info) const {
  info.id = chunks_[ordinal].id;
  info.verification_tag = chunks_[ordinal].verification_tag;
}

void MemorySource::Add(SourceChunk chunk, const TokenHash& token_hash) {
  const ChunkInfo& info = chunk.info;
  chunks_.push_back({.id = info.id,
                     .parent = info.parent,
                     .position = info.position,
                     .token_count = info.token_count(),
                     .verification_tag = info.verification_tag,
                     .token_hash = token_hash,
                     .extra_keys = info.extra_keys});
  held_.push_back(std::move(chunk));
}

}  // namespace ckv
