// Recomputes the rows of a text's chunks, for contexts that may do so instead of copying them from
// a holder (Recompute, client/context.h):
//
//   recompute.make = [&](const RecomputeCall& call) {
//     return test::RecomputeRows(*engine, pool, tokens, token_counts, call.chunk_begin,
//     call.chunk_end,
//                          call.rows, call.wanted);
//   };

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attention/worker_pool.h"
#include "client/tools/reference_engine/engine.h"
#include "proto/base/status.h"

namespace ckv::test {

// Prefills `tokens` up to the end of chunk `chunk_end` - 1, because a chunk's rows depend on all
// tokens before it. `token_counts` has the token count of each chunk of the text. The result of
// `rows(chunk, layer)` is where to write the rows of a layer: [token_count][row_bytes].
//   InvalidArgument     the chunks are not within the tokens.
//   Cancelled           `wanted` returned false. It is called after each block of the prefill.
//   else                the engine's errors.
inline absl::Status RecomputeRows(
    const Engine& engine, WorkerPool& pool, std::span<const int32_t> tokens,
    std::span<const uint32_t> token_counts, uint32_t chunk_begin, uint32_t chunk_end,
    absl::FunctionRef<std::span<std::byte>(uint32_t chunk, uint32_t layer)> rows,
    absl::FunctionRef<bool()> wanted) {
  if (chunk_begin >= chunk_end || chunk_end > token_counts.size())
    return absl::InvalidArgumentError("recompute: the text has no such chunks");
  const auto counts = token_counts.first(chunk_end);
  const uint64_t end = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (end > tokens.size())
    return absl::InvalidArgumentError("recompute: the text has fewer tokens than its chunks");
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> made,
                       engine.Prefill(tokens.first(end), /*position=*/0, pool, [&](uint32_t) {
                         return wanted() ? absl::OkStatus()
                                         : absl::CancelledError("recompute: not wanted any more");
                       }));
  const uint32_t row_bytes = engine.geometry().row_bytes();
  for (uint32_t layer = 0; layer < engine.geometry().layers; ++layer) {
    const RowView view = made->rows(layer);
    uint64_t token = 0;
    for (uint32_t chunk = 0; chunk < chunk_end; token += token_counts[chunk++]) {
      if (chunk < chunk_begin) continue;
      std::byte* to = rows(chunk, layer).data();
      for (uint32_t i = 0; i < token_counts[chunk]; ++i, to += row_bytes)
        std::memcpy(to, view.data + (token + i) * view.stride_bytes, row_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace ckv::test
