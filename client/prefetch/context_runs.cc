#include "client/prefetch/context_runs.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "client/prefetch/local_row_cache.h"

namespace ckv {
namespace {

uint64_t KeyOf(const ContextState& context, const ContextRun& run) {
  uint64_t key = 0;
  for (uint32_t chunk = run.chunk_begin; chunk < run.chunk_end; ++chunk) {
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

std::vector<ContextRun> RunsOf(const ContextState& context) {
  const std::span<const ContextChunk> chunks = context.chunks();
  std::vector<ContextRun> runs;
  uint32_t chunks_each = 1;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    const bool goes_on = i > 0 && chunks[i - 1].part == chunks[i].part &&
                         chunks[i - 1].ordinal + 1 == chunks[i].ordinal &&
                         chunks[i].ordinal % chunks_each != 0;
    if (i == 0 || chunks[i - 1].part != chunks[i].part) {
      const uint32_t fit = std::max(1u, kRunTokens / std::max(1u, chunks[i].token_count));
      chunks_each = std::min(kRunChunkCountMax, std::bit_floor(fit));
    }
    if (!goes_on) runs.push_back({.chunk_begin = i, .chunk_end = i});
    ContextRun& run = runs.back();
    run.chunk_end = i + 1;
    run.tokens += chunks[i].token_count;
    run.bytes += LocalRowCache::BytesOf(context.geometry(), chunks[i].token_count);
  }
  for (ContextRun& run : runs) run.key = KeyOf(context, run);
  return runs;
}

}  // namespace ckv
