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
  info.seal = chunks_[ordinal].seal;
}

void MemorySource::Add(SourceChunk chunk, const TokenPrint& print) {
  const ChunkInfo& info = chunk.info;
  chunks_.push_back({.id = info.id,
                     .parent = info.parent,
                     .position = info.position,
                     .token_count = info.token_count(),
                     .seal = info.seal,
                     .print = print,
                     .extra_keys = info.extra_keys});
  held_.push_back(std::move(chunk));
}

}  // namespace ckv
