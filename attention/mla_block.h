// How the vector targets compute one block of query rows over one span of cKV rows. Internal to
// this folder; block_kernel.h defines blocks.
//
// Words: a block is up to kBlockRows query rows, computed a half of kHalfRows at a time. A key is
// an attended cKV row. A column is one of the d_qk values of a row, and a panel is kPanelWidth
// columns of a tile of keys.
//
// Batch invariance depends on the order of every sum:
//   logit   over the columns of a panel, from zero and ascending. The panels' sums are then added
//           in order. For fp8_ds_mla, a fused multiply-add applies the key's scale of the panel.
//   tile    kTileRows keys; its sums over keys start from zero, ascending, and are then added to
//           the span's sums (times exp(old maximum - new maximum))
//   span    kSpanRows keys, from an empty state; spans are folded in ascending order
// Keys are counted from the first row of the piece, or along the index list without its skipped
// entries. The order does not depend on the block's other rows, on threads or on addresses. Every
// tile of a span but the last is full.
//
// Columns of the last panel beyond d_qk are zeros, and those of o beyond d_v are never written out.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/block_kernel.h"

namespace ckv {

// Query rows side by side in registers: four AVX-512 vectors. With six keys, they take 24
// accumulators out of 32 registers.
inline constexpr uint32_t kHalfRows = 64;
// Query rows that share a tile: it is converted once for 128 rows, which takes 3 % of a call. Their
// accumulators and queries take 0.56 MB, which leaves room for the tile in 1 MB of L2.
inline constexpr uint32_t kBlockRows = 2 * kHalfRows;
static_assert(kBlockRows <= kBlockRowsMax);
// Keys of a tile: a multiple of 6, 8, 12 and 24. These numbers of keys are in registers at a time
// with 4, 3, 2 and 1 vectors of query rows.
inline constexpr uint32_t kTileRows = 72;
// Columns of a panel: f32 [72][64] is 18 KB, so a panel and its operands stay in L1.
inline constexpr uint32_t kPanelWidth = 64;
inline constexpr uint32_t kPanelFloats = kTileRows * kPanelWidth;
// Keys of a span: two tiles. Spans are short, so that 2048 rows split evenly over threads. With
// eight tiles, two threads would get 1152 and 896 rows. Folding costs 1 %: three passes over an
// accumulator per 144 x (d_qk + d_v) / d_v multiply-adds on it.
inline constexpr uint32_t kSpanRows = 2 * kTileRows;
// One cache line more than the rows of a half. A stride of 5 lines uses all sets of L1; 4 lines
// would use a quarter.
inline constexpr uint32_t kLogitStride = kHalfRows + 16;

// The stride of a panel that mla_narrow.inl.h has transposed: the keys of a tile, rounded up to
// whole vectors.
inline constexpr uint32_t kKeyStride = 80;
// mla_narrow.inl.h computes blocks of at most this many query rows, which are called narrow. The
// choice changes only the speed, not the bits.
inline constexpr uint32_t kNarrowRowsMax = 12;
// The logits of a narrow block with at least this many rows are computed by mla_quad.inl.h if
// vectors have 16 lanes. The bits are the same.
inline constexpr uint32_t kQuadRowsMin = 3;

// Whether mla_narrow.inl.h computes the block.
inline bool IsNarrow(const RowBlock& block) { return block.count <= kNarrowRowsMax; }

// Yields the attended rows of one span of a block, a tile at a time. The span begins at `begin`.
class TileSource {
 public:
  TileSource(const RowBlock& block, uint32_t begin);

  // Writes the addresses of the next rows, at most kTileRows, and returns their number. Returns 0
  // at the end of the span.
  uint32_t Next(const std::byte** rows);

 private:
  // Moves to the next index that is not skipped. Returns false at the end of the list.
  bool NextIndex(uint32_t* index);

  const RowBlock& block_;
  uint32_t position_;   // dense: row; selected: place in the index list
  uint32_t remaining_;  // rows that the span may still take
};

// The state of a block's query rows, in scratch memory (64-byte aligned). m is the maximum of the
// logits, which include the softmax scale. l is the sum of the weights exp(logit - m), and o that
// of the values times their weights, not yet divided by l (attention/partial.h). packed_rows is
// RowBlock::packed_rows(), the block's rows rounded up to whole vectors.
//
// Begin a total with m = kEmptyM and l = 0, which is the state of a row that saw no key.
struct BlockState {
  float* m = nullptr;  // [packed_rows]
  float* l = nullptr;  // [packed_rows]; 0 if the row saw no key, and its o is then uninitialised
  // [packed_rows][o_stride]. Only the order of columns within a row differs for narrow blocks
  // (WriteRow in mla_block.cc), so From and FoldSpan work on rows of any block.
  float* o = nullptr;

  static uint32_t o_stride(const AttentionShape& shape) { return RoundUp(shape.d_v, kPanelWidth); }
  static size_t FloatCount(const AttentionShape& shape, uint32_t packed_rows) {
    return size_t{packed_rows} * (2 + o_stride(shape));
  }
  static BlockState At(float* memory, uint32_t packed_rows) {
    return {memory, memory + packed_rows, memory + 2 * packed_rows};
  }
  // Returns the state from row `first` on.
  BlockState From(const AttentionShape& shape, uint32_t first) const {
    return {m + first, l + first, o + size_t{first} * o_stride(shape)};
  }
};

// The scratch memory of one worker, divided into buffers.
struct BlockScratch {
  float* q = nullptr;        // each half: [d_qk][packed rows]; narrow block: see its .inl.h
  float* tile = nullptr;     // [panels][kTileRows][kPanelWidth]
  float* scales = nullptr;   // [panels][kKeyStride]: of a key's panel; 1 unless fp8_ds_mla
  float* keys = nullptr;     // [kPanelWidth][kKeyStride], narrow blocks only
  float* logits = nullptr;   // [kTileRows][kLogitStride]
  float* scaled = nullptr;   // as logits: weights times scales, fp8_ds_mla only
  float* total = nullptr;    // one BlockState
  float* results = nullptr;  // BlockStates of kBlockRows rows in total

  // Divides `memory`, which is the scratch memory that a WorkerPool (worker_pool.h) gives each
  // worker. Ends the process if it is too small.
  static BlockScratch Cut(const AttentionShape& shape, std::span<std::byte> memory);
};

// Packs the block's query rows as f32, in the layout of BlockScratch::q. Rows beyond `count` repeat
// the last row.
void PackQueries(const AttentionShape& shape, const RowBlock& block, float* q) noexcept;
// Computes the span that begins at `begin` (0, or a SpanEnd) from the packed queries into `result`.
// `next` is where the next span of this thread begins, or key_count() if there is none. The first
// tile of that span is prefetched.
void AttendSpan(const AttentionShape& shape, const RowBlock& block, uint32_t begin, uint32_t next,
                const BlockScratch& scratch, const BlockState& result) noexcept;
// Computes total = total + span for the first `count` query rows. If one side is empty, the result
// has the other's bits.
void FoldSpan(const AttentionShape& shape, uint32_t count, const BlockState& span,
              const BlockState& total) noexcept;
// Divides by l, rounds to each row's dtype, and writes each row's o, m and l to its BlockRow.
void WriteBlock(const AttentionShape& shape, const RowBlock& block,
                const BlockState& total) noexcept;

}  // namespace ckv
