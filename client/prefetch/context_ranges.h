// The chunk ranges of a context. Each is decided on and prefetched as a unit.

#pragma once

#include <cstdint>
#include <vector>

#include "client/context/context_state.h"

namespace ckv {

// A range has about this many tokens: 2^k aligned chunks, at most kRangeChunkCountMax. A decision
// on fewer tokens costs more time than it saves. With more, a context of many small chunks could
// not be cached part by part.
inline constexpr uint32_t kRangeTokens = 2048;
inline constexpr uint32_t kRangeChunkCountMax = 16;

// Chunks [chunk_begin, chunk_end) of a context, in the order of the tree. They are from one corpus,
// with consecutive ordinals.
struct ContextRange {
  uint64_t key = 0;  // equal for ranges of the same chunk ids
  uint32_t chunk_begin = 0, chunk_end = 0;
  uint64_t tokens = 0;
  uint64_t bytes = 0;  // in the local row cache
};

// Returns the id of a chunk of a context.
const ChunkId& ChunkIdOf(const ContextState& context, uint32_t chunk);

// Divides all chunks of a context into ranges, in order.
std::vector<ContextRange> RangesOf(const ContextState& context);

}  // namespace ckv
