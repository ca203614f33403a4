// The vector kernel for one block of query rows; block_kernel.h has its contract. For a block:
//   PackQueries  lays the queries out for the kernel
//   AttendSpan   goes over the tiles of one span of rows: logits, weights, then sums of values,
//                while the next tile is prefetched. Narrow blocks have lanes over cKV rows and
//                columns, others over query rows
//   FoldSpan     adds the result of a span to the block's total, in the order of spans
//   WriteBlock   divides the sums by l and writes the partials
// Everything before HWY_AFTER_NAMESPACE is compiled once for each target.

#include "attention/mla_block.h"

#include <cstring>
#include <limits>

#include "attention/bf16.h"
#include "attention/worker_pool.h"
#include "proto/base/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/mla_block.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file again for every target.
#include "attention/mla_narrow.inl.h"
#include "attention/mla_quad.inl.h"
#include "attention/mla_tile.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// Returns how many keys of the tile [begin, begin + count) each row sees. The source filtered the
// indices, so selected rows see them all.
void CountVisible(const RowBlock& block, uint32_t begin, uint32_t count, uint32_t* visible) {
  for (uint32_t i = 0; i < block.packed_rows(); ++i) {
    uint32_t seen = i < block.count ? count : 0;
    if (i < block.count && block.indices == nullptr) {
      const uint32_t limit = block.rows[i].limit;
      seen = limit <= begin ? 0 : std::min(count, limit - begin);
    }
    visible[i] = seen;
  }
}

// Writes one tile's sums over the block's query rows into `result`: lanes over query rows, one
// half of the block after the other.
void AttendTile(const AttentionShape& shape, const RowBlock& block, const std::byte* const* rows,
                uint32_t count, const uint32_t* visible, bool first, const BlockScratch& scratch,
                const BlockState& result, NextTilePrefetch& prefetch) {
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(DF()));
  alignas(64) float alpha[kHalfRows];
  ConvertTile(shape, rows, count, scratch.tile, scratch.scales);
  for (uint32_t begin = 0; begin < block.count; begin += kHalfRows) {
    const uint32_t query_rows = std::min(kHalfRows, block.count - begin);
    const uint32_t packed_rows = RoundUp(query_rows, 16);
    const BlockState half = result.From(shape, begin);
    Logits(shape, scratch.q + size_t{begin} * shape.d_qk, packed_rows, scratch.tile, scratch.scales,
           count, scratch.logits, prefetch);
    for (uint32_t i = 0; i < packed_rows; i += lanes) {
      SoftmaxVector(shape.softmax_scale, visible + begin + i, count, scratch.logits + i, half.m + i,
                    half.l + i, alpha + i);
    }
    Values(shape, query_rows, count, visible + begin, scratch, alpha, first, half, prefetch);
  }
}

// Computes the same sums with lanes over cKV rows and columns. `rows` has kKeyStride entries.
void AttendNarrowTile(const AttentionShape& shape, const RowBlock& block, const std::byte** rows,
                      uint32_t count, const uint32_t* visible, bool first,
                      const BlockScratch& scratch, const BlockState& result,
                      NextTilePrefetch& prefetch) {
  float alpha[kNarrowRowsMax];
  if (shape.row_dtype == RowDtype::kFp8DsMla) {
    auto* unpacked = reinterpret_cast<uint16_t*>(scratch.tile);
    for (uint32_t j = 0; j < count; ++j, unpacked += shape.d_qk) {
      CopyScales(shape, rows[j], scratch.scales + j);
      UnpackFp8DsMla(shape, rows[j], unpacked);
      rows[j] = reinterpret_cast<const std::byte*>(unpacked);
    }
  }
  // Computes whole vectors of keys. The results of surplus keys in the last vector are never read.
  std::fill(rows + count, rows + kKeyStride, rows[count - 1]);
  NarrowWeights(shape, block.count, rows, count, visible, scratch, alpha, result, prefetch);
  NarrowValues(shape, block.count, UsesQuads(block.count), rows, visible, scratch, alpha, first,
               result.o, prefetch);
}

void AttendSpanImpl(const AttentionShape& shape, const RowBlock& block, uint32_t begin,
                    uint32_t next, const BlockScratch& scratch, const BlockState& result) {
  for (uint32_t i = 0; i < block.packed_rows(); ++i) {
    result.m[i] = kEmptyM;
    result.l[i] = 0;
  }
  // Once is enough for bf16: nothing writes them. Stale scales of fp8 rows are never used.
  const uint32_t panels = RoundUp(shape.d_qk, kPanelWidth) / kPanelWidth;
  std::fill_n(scratch.scales, size_t{panels} * kKeyStride, 1.0f);
  alignas(64) uint32_t visible[kBlockRows];
  const std::byte* rows[2][kKeyStride];
  TileSource source(block, begin);
  uint32_t current = 0;
  uint32_t count = source.Next(rows[current]);
  for (bool first = true; count > 0; first = false) {
    const uint32_t next_count = source.Next(rows[1 - current]);
    uint32_t ahead = next_count;
    if (ahead == 0 && next < block.key_count()) {
      ahead = TileSource(block, next).Next(rows[1 - current]);
    }
    NextTilePrefetch prefetch(rows[1 - current], ahead, RowBytes(shape));
    CountVisible(block, begin, count, visible);
    if (IsNarrow(block)) {
      AttendNarrowTile(shape, block, rows[current], count, visible, first, scratch, result,
                       prefetch);
    } else {
      AttendTile(shape, block, rows[current], count, visible, first, scratch, result, prefetch);
    }
    begin += count;
    count = next_count;
    current = 1 - current;
  }
}

void PackQueriesImpl(const AttentionShape& shape, const RowBlock& block, float* q) {
  const bool quads = UsesQuads(block.count);
  if (IsNarrow(block) && !quads) {
    for (uint32_t i = 0; i < block.count; ++i, q += shape.d_qk) {
      FloatsFromBf16(block.rows[i].q, q, shape.d_qk);
    }
    return;
  }
  const std::byte* rows[kBlockRows];
  for (uint32_t i = 0; i < block.packed_rows(); ++i) {
    rows[i] = reinterpret_cast<const std::byte*>(block.rows[std::min(i, block.count - 1)].q);
  }
#if HWY_TARGET != HWY_SCALAR
  if (quads) {
    const uint32_t groups = RoundUp(block.count, kQuad) / kQuad;
    return PackQuads(rows, groups, shape.d_qk, q + size_t{shape.d_qk} * kHalfRows, q);
  }
#endif
  for (uint32_t begin = 0; begin < block.count; begin += kHalfRows) {
    PackRows(rows + begin, std::min(kHalfRows, block.packed_rows() - begin), shape.d_qk,
             q + size_t{begin} * shape.d_qk);
  }
}

void FoldRow(const float* from, float from_factor, float* to, float to_factor, uint32_t d_v) {
  const DF d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto a = hn::Set(d, to_factor);
  const auto b = hn::Set(d, from_factor);
  for (uint32_t c = 0; c < d_v; c += lanes) {
    const auto scaled = hn::Mul(hn::Load(d, to + c), a);
    hn::Store(hn::MulAdd(hn::Load(d, from + c), b, scaled), d, to + c);
  }
}

// Computes exp(x), with the bits of the vector function.
float ExpOf(float x) {
  const DF d;
  return hn::GetLane(ExpNonPositive(d, hn::Set(d, x)));
}

void FoldSpanImpl(const AttentionShape& shape, uint32_t count, const BlockState& span,
                  const BlockState& total) {
  const uint32_t o_stride = BlockState::o_stride(shape);
  for (uint32_t i = 0; i < count; ++i) {
    if (span.l[i] == 0) continue;
    const float* from = span.o + size_t{i} * o_stride;
    float* to = total.o + size_t{i} * o_stride;
    if (total.l[i] == 0) {
      std::memcpy(to, from, shape.d_v * sizeof(float));
      total.l[i] = span.l[i];
      total.m[i] = span.m[i];
      continue;
    }
    const float max = std::max(total.m[i], span.m[i]);
    // NaN logits leave -inf on both sides: measure from 0, as in SoftmaxVector.
    const float base = max == kEmptyM ? 0 : max;
    const float total_factor = ExpOf(total.m[i] - base), span_factor = ExpOf(span.m[i] - base);
    FoldRow(from, span_factor, to, total_factor, shape.d_v);
    total.l[i] = total.l[i] * total_factor + span.l[i] * span_factor;
    total.m[i] = max;
  }
}

// Writes `count` values to column `column` of o, which may be wire memory at any 2- or 4-byte
// address.
void WriteColumns(VF value, uint32_t column, uint32_t count, PartialDtype dtype, void* o) {
  const DF d;
  auto* bytes = static_cast<uint8_t*>(o);
  if (dtype == PartialDtype::kF32) {
    alignas(64) float tail[16];
    hn::Store(value, d, tail);
    std::memcpy(bytes + size_t{column} * 4, tail, count * 4);
  } else {
    alignas(64) uint16_t tail[16];
    StoreU16Lanes(d, RoundToBf16(d, value), tail);
    std::memcpy(bytes + size_t{column} * 2, tail, count * 2);
  }
}

// Writes o = sum / l in the wanted dtype. A narrow block's sums are pairs of vectors of even and of
// odd columns, as far as whole pairs go.
void WriteRow(const float* sum, float l, uint32_t d_v, bool pairs, PartialDtype dtype, void* o) {
  const DF d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto divisor = hn::Set(d, l);
  uint32_t c = 0;
  for (; pairs && c + 2 * lanes <= d_v; c += 2 * lanes) {
    alignas(64) float columns[2 * 16];
    hn::StoreInterleaved2(hn::Div(hn::Load(d, sum + c), divisor),
                          hn::Div(hn::Load(d, sum + c + lanes), divisor), d, columns);
    WriteColumns(hn::Load(d, columns), c, lanes, dtype, o);
    WriteColumns(hn::Load(d, columns + lanes), c + lanes, lanes, dtype, o);
  }
  for (; c < d_v; c += lanes) {
    const auto value = hn::Div(hn::Load(d, sum + c), divisor);
    WriteColumns(value, c, std::min(lanes, d_v - c), dtype, o);
  }
}

// Whether the rows of a selected block attend any row; they share the list and the limit.
bool SelectsAny(const RowBlock& block) {
  for (uint32_t place = 0; place < block.index_count; ++place) {
    if (block.Selects(place)) return true;
  }
  return false;
}

void WriteBlockImpl(const AttentionShape& shape, const RowBlock& block, const BlockState& total) {
  const uint32_t o_stride = BlockState::o_stride(shape);
  // Once per block, because a list may be a peer's 4 M entries that are all skipped.
  const bool selects_any = block.indices != nullptr && SelectsAny(block);
  for (uint32_t i = 0; i < block.count; ++i) {
    const BlockRow& row = block.rows[i];
    float l = total.l[i];
    const bool attends_any =
        block.indices != nullptr ? selects_any : std::min(row.limit, block.keys.count) > 0;
    if (l == 0 && attends_any) {
      // Every logit was -inf, which only infinite values cause. The result is undefined, and must
      // differ from that of a row without keys.
      l = std::numeric_limits<float>::quiet_NaN();
      std::fill_n(total.o + size_t{i} * o_stride, shape.d_v, l);
    }
    if (l == 0) {
      std::memset(row.o, 0, size_t{shape.d_v} * (row.dtype == PartialDtype::kF32 ? 4 : 2));
      *row.m = kEmptyM;
      *row.l = 0;
      continue;
    }
    WriteRow(total.o + size_t{i} * o_stride, l, shape.d_v, IsNarrow(block), row.dtype, row.o);
    // A NaN logit makes l NaN and may leave m = -inf, which a merge would take for an empty part
    // and drop. With a finite m the NaN reaches the answer, where it is seen. + 0 turns a -0 into a
    // +0: the paths differ in which of the two the maximum of both is.
    *row.m = l == l ? total.m[i] + 0.0f : 0.0f;
    *row.l = l;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {

HWY_EXPORT(PackQueriesImpl);
HWY_EXPORT(AttendSpanImpl);
HWY_EXPORT(FoldSpanImpl);
HWY_EXPORT(WriteBlockImpl);

TileSource::TileSource(const RowBlock& block, uint32_t begin)
    : block_(block), position_(begin), remaining_(kSpanRows) {
  if (block.indices == nullptr) remaining_ = std::min(kSpanRows, block.key_count() - begin);
}

bool TileSource::NextIndex(uint32_t* index) {
  while (position_ < block_.index_count) {
    const uint32_t place = position_++;
    if (!block_.Selects(place)) continue;
    *index = static_cast<uint32_t>(block_.indices[place]);
    return true;
  }
  return false;
}

uint32_t TileSource::Next(const std::byte** rows) {
  const uint32_t want = std::min(remaining_, kTileRows);
  const RowView& keys = block_.keys;
  uint32_t count = 0;
  if (block_.indices == nullptr) {
    for (; count < want; ++count) {
      rows[count] = keys.Row(position_++);
    }
  } else {
    uint32_t index;
    while (count < want && NextIndex(&index)) {
      rows[count++] = keys.Row(index);
    }
  }
  remaining_ -= count;
  return count;
}

BlockScratch BlockScratch::Cut(const AttentionShape& shape, std::span<std::byte> memory) {
  const size_t panels = RoundUp(shape.d_qk, kPanelWidth) / kPanelWidth;
  const size_t state_floats = BlockState::FloatCount(shape, kBlockRows);
  BlockScratch cut;
  cut.q = reinterpret_cast<float*>(memory.data());
  cut.tile = cut.q + size_t{shape.d_qk} * kBlockRows;
  cut.scales = cut.tile + panels * kPanelFloats;
  cut.keys = cut.scales + panels * kKeyStride;
  cut.logits = cut.keys + size_t{kPanelWidth} * kKeyStride;
  cut.scaled = cut.logits + size_t{kTileRows} * kLogitStride;
  cut.total = cut.scaled + size_t{kTileRows} * kLogitStride;
  cut.results = cut.total + state_floats;
  CKV_CHECK(reinterpret_cast<std::byte*>(cut.results + state_floats) <=
            memory.data() + memory.size());
  return cut;
}

void PackQueries(const AttentionShape& shape, const RowBlock& block, float* q) noexcept {
  HWY_DYNAMIC_DISPATCH(PackQueriesImpl)(shape, block, q);
}

void AttendSpan(const AttentionShape& shape, const RowBlock& block, uint32_t begin, uint32_t next,
                const BlockScratch& scratch, const BlockState& result) noexcept {
  HWY_DYNAMIC_DISPATCH(AttendSpanImpl)(shape, block, begin, next, scratch, result);
}

void FoldSpan(const AttentionShape& shape, uint32_t count, const BlockState& span,
              const BlockState& total) noexcept {
  HWY_DYNAMIC_DISPATCH(FoldSpanImpl)(shape, count, span, total);
}

void WriteBlock(const AttentionShape& shape, const RowBlock& block,
                const BlockState& total) noexcept {
  HWY_DYNAMIC_DISPATCH(WriteBlockImpl)(shape, block, total);
}

}  // namespace ckv
#endif  // HWY_ONCE
