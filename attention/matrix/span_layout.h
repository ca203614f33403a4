// The memory layout of a span in a matrix kernel: the shapes that its products and its softmax
// share.
//
// A span is up to kSpanKeys attended rows ("keys"), in groups of 32. Query rows are in tiles of 16.
// An item is two tiles, or one if the block has only one. If the number of tiles is odd, the second
// of the last item is computed and ignored. A column is one of the d_qk values of
// a row. All operands are pairs of bf16: a word holds two values that a dot product multiplies and
// adds together.
//
// A bf16 has 8 significant bits and a float 24. So a weight, or a value times its scale, is a sum
// of up to three bf16, its terms, the largest first. Each term is multiplied.
//
// Sizes are rounded up, and the kernel computes the padding, too. Added query rows repeat the last
// row. Added keys are rows of zeros with weight 0. Added columns are zeros, and those of o are
// never written out.
//
// A buffer that begins with [2] is two that alternate: one is written while the other is read.
//
//   queries   [tile][step][16 pairs of columns][16 rows]    words; a step is 32 columns
//   logits    [tile of the item][kSpanKeys][16 rows]        f32, raw: not yet scaled
//   weights   [item][tile][term][group][16 rows][16 pairs of keys]   words. DotKernel stores its
//             logits here, f32 [tile][kSpanKeys][16 rows], and then its weights
//   values    [group][2 halves][16 pairs of keys][16 columns]        words: 32 columns of a span,
//             whose halves are `lo` and `hi` of Lanes::Interleave (lanes_portable.h)
//   o         [tile][column tile][16 rows][16 columns]      f32; a chunk of 32 columns is two
//             column tiles, whose columns are in the order of Lanes::Interleave

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/block_kernel.h"
#include "attention/fp8.h"
#include "proto/base/status.h"

namespace ckv::matrix {

// 128 of DeepSeek's keys are 147 KB. Rows from DRAM are evicted from L2 after some 300 KB of
// others. So the rows of a span, of the next span and the prefetched rows stay in L2. With 256
// keys, 32768 uncached rows took 1.05 to 1.25 times as long, and warm ones 0.93 to 0.97 times.
inline constexpr uint32_t kSpanKeys = 128;
inline constexpr uint32_t kGroupKeys = 32;
inline constexpr uint32_t kSpanGroups = kSpanKeys / kGroupKeys;
inline constexpr uint32_t kStepColumns = 32;
inline constexpr uint32_t kTermsMax = 3;  // the most bf16 terms of a weight
// The largest number of bf16 terms that add up to one row. Rows have one term, except fp8 rows with
// a scale that is not a power of two.
inline constexpr uint32_t kRowTermsMax = 3;

// The state of a block: m is raw (not yet times the scale), and o is not yet divided by l.
struct SpanState {
  // packed_rows is RowBlock::packed_rows(), the block's rows rounded up. If m = -inf and l = 0, the
  // row saw no key, and its o is not initialised.
  float* m = nullptr;  // [packed_rows]
  float* l = nullptr;  // [packed_rows]
  float* o = nullptr;

  // Column tiles of one query tile: a multiple of 4, because one-tile items compute 4 at once.
  static uint32_t ColumnTiles(const AttentionShape& shape) { return RoundUp(shape.d_v, 64) / 16; }
  static size_t FloatCount(const AttentionShape& shape, uint32_t packed_rows) {
    return size_t{packed_rows} * (2 + 16 * ColumnTiles(shape));
  }
  static SpanState At(float* memory, uint32_t packed_rows) {
    return {memory, memory + packed_rows, memory + 2 * packed_rows};
  }
  bool empty(uint32_t row) const { return m[row] == kEmptyM && l[row] == 0; }
};

// 32 keys: the place where the products read them. A row of bf16 is read in place if the 32 are
// adjacent in memory and d_qk is a multiple of 32. Others are staged.
struct KeyGroup {
  std::array<const uint16_t*, kRowTermsMax> rows =
      {};  // one per term of the span (Span::row_terms)
  size_t stride_bytes = 0;
};

// The scratch memory of one worker, divided into buffers.
struct Workspace {
  uint32_t* queries = nullptr;
  uint32_t* weights = nullptr;
  // [2][row term][chunk][group][2 halves][16 pairs of keys][16 columns]: one chunk of 32 columns
  // for an item of two tiles, two for one of one tile
  uint32_t* values = nullptr;
  // [2][2 sub-blocks][term][16 pairs of keys][16 rows]: weights that are not yet transposed. The
  // sub-blocks are one group for two tiles, or two groups for one.
  uint32_t* pairs = nullptr;
  float* logits[2] = {};          // [tiles of an item][kSpanKeys][16 rows]
  float* sums = nullptr;          // [2][4][16 x 16]: products of an item's weights and `values`,
                                  // before they are folded into o
  uint16_t* staged[2] = {};       // [kSpanKeys][width]: rows that cannot be read in place, of this
                                  // span and of the next
  uint16_t* low_terms = nullptr;  // [kRowTermsMax - 1][kSpanKeys][width], fp8 rows only
  float* total = nullptr;         // one SpanState
  float* results = nullptr;       // SpanStates of kBlockRowsMax rows in total

  // Returns the width of a row in products: d_qk rounded up to whole steps.
  static uint32_t Width(const AttentionShape& shape) { return RoundUp(shape.d_qk, kStepColumns); }

  // Divides `memory`, which is the scratch memory that a WorkerPool (attention/worker_pool.h) gives
  // each worker. Ends the process if it is too small.
  static Workspace Cut(const AttentionShape& shape, std::span<std::byte> memory) {
    const size_t width = Width(shape), rows = kBlockRowsMax;
    const size_t state = SpanState::FloatCount(shape, kBlockRowsMax);
    std::byte* at = memory.data();
    const auto cut = [&](size_t bytes) {
      // Most sizes are multiples of a page. One more cache line puts operands that are used
      // together into different cache sets.
      std::byte* const begin = at;
      at += RoundUp(static_cast<uint32_t>(bytes), 64) + 64;
      return begin;
    };
    const auto words = [&](size_t count) { return reinterpret_cast<uint32_t*>(cut(4 * count)); };
    const auto floats = [&](size_t count) { return reinterpret_cast<float*>(cut(4 * count)); };
    Workspace w;
    w.queries = words(rows * width / 2);
    w.weights = words(rows * kSpanKeys / 2 * kTermsMax);
    w.values = words(size_t{2} * kRowTermsMax * 2 * kSpanGroups * 512);
    w.pairs = words(size_t{2} * 2 * kTermsMax * 256);
    for (float*& logits : w.logits) logits = floats(size_t{kSpanKeys} * 32);
    w.sums = floats(size_t{2} * 4 * 256);
    for (uint16_t*& staged : w.staged)
      staged = reinterpret_cast<uint16_t*>(words(kSpanKeys * width / 2));
    w.total = floats(state);
    w.results = floats(state);
    if (shape.row_dtype == RowDtype::kFp8DsMla) {
      w.low_terms = reinterpret_cast<uint16_t*>(words((kRowTermsMax - 1) * kSpanKeys * width / 2));
    }
    CKV_CHECK(at <= memory.data() + memory.size());
    return w;
  }
};

}  // namespace ckv::matrix
