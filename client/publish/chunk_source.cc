#include "client/publish/chunk_source.h"

#include <utility>

namespace ckv {

uint64_t ChunkSource::token_count() const {
  uint64_t count = 0;
  for (const PlannedChunk& chunk : chunks_) count += chunk.token_count;
  return count;
}

uint64_t ChunkSource::row_bytes() const { return token_count() * geometry_.token_bytes(); }

void MemorySource::Add(SourceChunk chunk) {
  const ChunkInfo& info = chunk.info;
  chunks_.push_back({info.id, info.parent, info.position, info.token_count()});
  held_.push_back(std::move(chunk));
}

}  // namespace ckv
