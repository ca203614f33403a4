#include "client/prefetch/context_ranges.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "client/prefetch/local_row_cache.h"

namespace ckv {
namespace {

uint64_t KeyOf(const ContextState& context, const ContextRange& range) {
  uint64_t key = 0;
  for (uint32_t chunk = range.chunk_begin; chunk < range.chunk_end; ++chunk) {
    const ChunkId& id = ChunkIdOf(context, chunk);
    key = XXH3_64bits_withSeed(id.bytes.data(), id.bytes.size(), key);
  }
  return key;
}

}  // namespace

const ChunkId& ChunkIdOf(const ContextState& context, uint32_t chunk) {
  const ContextChunk& at = context.chunks()[chunk];
  return context.corpora()[at.part]->chunks[at.ordinal].id;
}

std::vector<ContextRange> RangesOf(const ContextState& context) {
  const std::span<const ContextChunk> chunks = context.chunks();
  std::vector<ContextRange> ranges;
  uint32_t chunks_each = 1;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    const bool goes_on = i > 0 && chunks[i - 1].part == chunks[i].part &&
                         chunks[i - 1].ordinal + 1 == chunks[i].ordinal &&
                         chunks[i].ordinal % chunks_each != 0;
    if (i == 0 || chunks[i - 1].part != chunks[i].part) {
      const uint32_t fit = std::max(1u, kRangeTokens / std::max(1u, chunks[i].token_count));
      chunks_each = std::min(kRangeChunkCountMax, std::bit_floor(fit));
    }
    if (!goes_on) ranges.push_back({.chunk_begin = i, .chunk_end = i});
    ContextRange& range = ranges.back();
    range.chunk_end = i + 1;
    range.tokens += chunks[i].token_count;
    range.bytes += LocalRowCache::BytesOf(context.geometry(), chunks[i].token_count);
  }
  for (ContextRange& range : ranges) range.key = KeyOf(context, range);
  return ranges;
}

}  // namespace ckv
