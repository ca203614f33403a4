// Recomputes the rows of a text's chunks, for contexts that may do so instead of copying them from
// a holder (Recompute, client/context/context.h):
//
//   recompute.make = [&](const RecomputeCall& call) {
//     return RecomputeRows(*engine, pool, tokens, token_counts, call.chunk_begin, call.chunk_end,
//                          call.rows, call.wanted);
//   };

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attention/worker_pool.h"
#include "client/engine/engine.h"

namespace ckv {

// Prefills `tokens` up to the end of chunk `chunk_end` - 1, because a chunk's rows depend on all
// tokens before it. `token_counts` has the token count of each chunk of the text. The result of
// `rows(chunk, layer)` is where to write the rows of a layer: [token_count][row_bytes].
//   InvalidArgument     the chunks are not within the tokens.
//   Cancelled           `wanted` returned false. It is called after each block of the prefill.
//   else                the engine's errors.
absl::Status RecomputeRows(
    const Engine& engine, WorkerPool& pool, std::span<const int32_t> tokens,
    std::span<const uint32_t> token_counts, uint32_t chunk_begin, uint32_t chunk_end,
    absl::FunctionRef<std::span<std::byte>(uint32_t chunk, uint32_t layer)> rows,
    absl::FunctionRef<bool()> wanted);

}  // namespace ckv
