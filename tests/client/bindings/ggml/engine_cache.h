// A cache of an engine as tests have it: cells of one layer in streams, tokens that see some of
// them, and the op over both.

#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "attention/bf16.h"
#include "attention/mla_partial.h"
#include "client/bindings/ggml/mla_op.h"
#include "gtest/gtest.h"
#include "store/formats/reference_cell.h"
#include "tests/support/test_corpus.h"

namespace ckv::test {

// Wide enough for a reference.
inline Geometry EngineGeometry() { return TestGeometry(3, 192, 128); }

struct EngineCache {
  static constexpr uint16_t kHidden = 0xfc00;

  EngineCache(uint32_t streams, uint32_t cells, uint32_t tokens, uint32_t heads, uint32_t seed)
      : stream_count(streams), cell_count(cells), token_count(tokens), head_count(heads) {
    std::mt19937 rng(seed);
    rows = RandomBf16(size_t{streams} * cells * geometry.d_qk, rng);
    std::uniform_real_distribution<float> value(-1, 1);
    q.resize(size_t{streams} * tokens * heads * geometry.d_qk);
    for (float& v : q) v = value(rng);
    mask.assign(size_t{streams} * tokens * cells, kHidden);
    out.assign(size_t{streams} * tokens * heads * geometry.d_v, 7);
  }

  std::span<std::byte> Cell(uint32_t stream, uint32_t cell) {
    return std::as_writable_bytes(std::span(rows))
        .subspan((size_t{stream} * cell_count + cell) * geometry.row_bytes(), geometry.row_bytes());
  }
  void Show(uint32_t stream, uint32_t token, uint32_t begin, uint32_t end) {
    for (uint32_t cell = begin; cell < end; ++cell) {
      mask[(size_t{stream} * token_count + token) * cell_count + cell] = 0;
    }
  }
  bool Sees(uint32_t stream, uint32_t token, uint32_t cell) const {
    return mask[(size_t{stream} * token_count + token) * cell_count + cell] != kHidden;
  }
  void Put(uint32_t stream, uint32_t cell, CellReference reference, uint32_t layer) {
    reference.layer = layer;
    const absl::Status status = EncodeReference(reference, Cell(stream, cell));
    ASSERT_TRUE(status.ok()) << status;
  }

  ggml::MlaOp Op(uint32_t layer = 0) {
    ggml::MlaOp op;
    op.layer = layer;
    op.softmax_scale = geometry.softmax_scale;
    op.d_qk = geometry.d_qk;
    op.d_v = geometry.d_v;
    op.head_count = head_count;
    op.token_count = token_count;
    op.stream_count = stream_count;
    op.cell_count = cell_count;
    op.q = reinterpret_cast<const std::byte*>(q.data());
    op.q_head_bytes = geometry.d_qk * sizeof(float);
    op.q_token_bytes = op.q_head_bytes * head_count;
    op.q_stream_bytes = op.q_token_bytes * token_count;
    op.cells = reinterpret_cast<const std::byte*>(rows.data());
    op.cell_bytes = geometry.row_bytes();
    op.cell_stream_bytes = op.cell_bytes * cell_count;
    op.mask = reinterpret_cast<const std::byte*>(mask.data());
    op.mask_token_bytes = cell_count * sizeof(uint16_t);
    op.mask_stream_bytes = op.mask_token_bytes * token_count;
    op.out = out.data();
    return op;
  }
  // The queries of one token as the kernel takes them.
  std::vector<uint16_t> Queries(uint32_t stream, uint32_t token) const {
    const size_t count = size_t{head_count} * geometry.d_qk;
    std::vector<uint16_t> rounded(count);
    Bf16FromFloats(q.data() + (size_t{stream} * token_count + token) * count, rounded.data(),
                   count);
    return rounded;
  }
  std::span<const float> Answer(uint32_t stream, uint32_t token) const {
    const size_t count = size_t{head_count} * geometry.d_v;
    return std::span(out).subspan((size_t{stream} * token_count + token) * count, count);
  }

  Geometry geometry = EngineGeometry();
  uint32_t stream_count, cell_count, token_count, head_count;
  std::vector<uint16_t> rows;  // bf16 [stream][cell][d_qk]
  std::vector<float> q;        // [stream][token][head][d_qk]
  std::vector<uint16_t> mask;  // f16 [stream][token][cell]
  std::vector<float> out;      // [stream][token][head][d_v]
};

}  // namespace ckv::test
