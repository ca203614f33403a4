// One attention of an engine: a layer's query rows over the cells of its cache, MLA in absorbed
// form.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/partial.h"

namespace ckv::ggml {

// Memory of the engine's, borrowed until OpAttender::Attend returns. A batch has streams (not
// compute streams): parts of the cache with tokens of their own. Query rows, cells and answers are
// those of one layer.
struct MlaOp {
  uint32_t layer = 0;
  float softmax_scale = 0;
  uint32_t d_qk = 0;  // values of a query row and of a cell: even, 4 to 1024
  uint32_t d_v = 0;   // the first d_v values of a cell are its value, the others the RoPE part
  uint32_t head_count = 0;
  uint32_t token_count = 0;  // in each stream
  uint32_t stream_count = 0;
  uint32_t cell_count = 0;  // in each stream

  // f32 [d_qk], one after another. The distances are in bytes.
  const std::byte* q = nullptr;
  size_t q_stream_bytes = 0, q_token_bytes = 0, q_head_bytes = 0;
  // bf16 [d_qk], one after another.
  const std::byte* cells = nullptr;
  size_t cell_stream_bytes = 0, cell_bytes = 0;
  // f16 [cell_count] for each token: 0 if it sees the cell, -inf if not; other values are refused.
  // All heads have one mask. If null, each token sees all cells. A mask_stream_bytes of 0 gives all
  // streams the same mask.
  const std::byte* mask = nullptr;
  size_t mask_stream_bytes = 0, mask_token_bytes = 0;
  float* out = nullptr;  // f32 [stream_count][token_count][head_count][d_v]

  std::span<const std::byte> Cell(uint32_t stream, uint32_t cell) const {
    return {cells + stream * cell_stream_bytes + cell * cell_bytes, size_t{d_qk} * 2};
  }
  // Cells from `begin` on.
  RowView Cells(uint32_t stream, uint32_t begin, uint32_t count) const {
    return {Cell(stream, begin).data(), count, static_cast<uint32_t>(cell_bytes)};
  }
  const float* Query(uint32_t stream, uint32_t token, uint32_t head) const {
    return reinterpret_cast<const float*>(q + stream * q_stream_bytes + token * q_token_bytes +
                                          head * q_head_bytes);
  }
  // Null if there is no mask.
  const uint16_t* Mask(uint32_t stream, uint32_t token) const {
    return mask == nullptr ? nullptr
                           : reinterpret_cast<const uint16_t*>(mask + stream * mask_stream_bytes +
                                                               token * mask_token_bytes);
  }
  float* Out(uint32_t stream, uint32_t token) const {
    return out + (size_t{stream} * token_count + token) * head_count * d_v;
  }
};

}  // namespace ckv::ggml
