// The runs of chunks of a context: what is decided on and pulled as one.

#pragma once

#include <cstdint>
#include <vector>

#include "client/context/context_state.h"

namespace ckv {

// A run has about this many tokens: 2^k aligned chunks, at most kRunChunkCountMax. A decision on
// fewer would not be worth its time. More would keep a context of many small chunks from coming
// near piece by piece.
inline constexpr uint32_t kRunTokens = 2048;
inline constexpr uint32_t kRunChunkCountMax = 16;

// Chunks [chunk_begin, chunk_end) of a context, in the order of the tree: of one corpus, with
// consecutive ordinals.
struct ContextRun {
  uint64_t key = 0;  // equal for runs of the same chunk ids
  uint32_t chunk_begin = 0, chunk_end = 0;
  uint64_t tokens = 0;
  uint64_t bytes = 0;  // in the near store
};

// Returns the id of a chunk of a context.
const ChunkId& ChunkIdOf(const ContextState& context, uint32_t chunk);

// Cuts all chunks of a context into runs, in their order.
std::vector<ContextRun> RunsOf(const ContextState& context);

}  // namespace ckv
