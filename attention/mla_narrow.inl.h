// Partial attention of few query rows over one tile of cKV rows, compiled once per SIMD target.
//
// mla_tile.inl.h puts query rows side by side in a vector, so one query row would use one lane of
// 16. Here lanes are cKV rows for the logits and columns for the values. bf16 rows are read in
// place, twice, the second time from L2. One query row then takes 75 ns per cKV row. That is less
// than the 100 ns that one core's share of DRAM bandwidth takes for its 1152 bytes.
//
// The sums have the same terms in the same order as in mla_tile.inl.h, so the bits are the same.
// The choice between the two affects only speed. That is why keys are transposed. Summing across
// lanes would be faster, but the order of its sums would depend on the vector width.
//
// From three rows on, mla_quad.inl.h computes the weights if vectors have 16 lanes.
//
// fp8_ds_mla rows are first unpacked to bf16, which represents their values exactly.
//
// Layouts, all f32:
//   q        [rows][d_qk]
//   keys     [kPanelWidth][kKeyStride]    one panel of the tile, transposed
//   logits   [rows][kKeyStride]           replaced by the weights
//   o        [rows][o_stride]             pairs of vectors of even and of odd columns

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/mla_block.h"

#if defined(CKV_ATTENTION_MLA_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CKV_ATTENTION_MLA_NARROW_INL_H_
#undef CKV_ATTENTION_MLA_NARROW_INL_H_
#else
#define CKV_ATTENTION_MLA_NARROW_INL_H_
#endif

#include "attention/mla_tile.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

#if HWY_TARGET != HWY_SCALAR
// Returns a vector whose 128-bit block b is the 16 bytes at `offset` of rows[4 * b].
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D du, const std::byte* const* rows, size_t offset) {
  if constexpr (hn::MaxLanes(du) <= 4) {
    return LoadU32Lanes(du, rows[0] + offset);
  } else {
    const hn::Half<D> half;
    return hn::Combine(du, LoadBlocks(half, rows + hn::MaxLanes(du) / 2, offset),
                       LoadBlocks(half, rows, offset));
  }
}
#endif

#if HWY_TARGET != HWY_SCALAR
// Transposes the 4 x 4 u32 of each 128-bit block: columns[k] is lane k of r0 to r3.
HWY_INLINE void InterleaveFour(VU r0, VU r1, VU r2, VU r3, VU columns[4]) {
  const DU du;
  const hn::Repartition<uint64_t, DU> du64;
  const auto low01 = hn::BitCast(du64, hn::InterleaveLower(du, r0, r1));
  const auto low23 = hn::BitCast(du64, hn::InterleaveLower(du, r2, r3));
  const auto high01 = hn::BitCast(du64, hn::InterleaveUpper(du, r0, r1));
  const auto high23 = hn::BitCast(du64, hn::InterleaveUpper(du, r2, r3));
  columns[0] = hn::BitCast(du, hn::InterleaveLower(du64, low01, low23));
  columns[1] = hn::BitCast(du, hn::InterleaveUpper(du64, low01, low23));
  columns[2] = hn::BitCast(du, hn::InterleaveLower(du64, high01, high23));
  columns[3] = hn::BitCast(du, hn::InterleaveUpper(du64, high01, high23));
}
#endif

// Loads the u32 at offset + 4 * k of rows[i] into lane i of columns[k].
HWY_INLINE void TransposeFour(const std::byte* const* rows, size_t offset, VU columns[4]) {
  const DU du;
#if HWY_TARGET == HWY_SCALAR
  for (size_t k = 0; k < 4; ++k) columns[k] = LoadU32Lanes(du, rows[0] + offset + 4 * k);
#else
  InterleaveFour(LoadBlocks(du, rows, offset), LoadBlocks(du, rows + 1, offset),
                 LoadBlocks(du, rows + 2, offset), LoadBlocks(du, rows + 3, offset), columns);
#endif
}

// Transposes eight bf16 columns of one row per lane, to out[d * stride + 0 .. lanes).
HWY_INLINE void TransposeEightBf16(const std::byte* const* rows, size_t offset, size_t stride,
                                   float* out) {
  const DF d;
  const DU du;
  const VU high = hn::Set(du, 0xffff0000u);
  VU pairs[4];
  TransposeFour(rows, offset, pairs);
  for (size_t k = 0; k < 4; ++k) {
    hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(pairs[k])), d, out + 2 * k * stride);
    hn::Store(hn::BitCast(d, hn::And(pairs[k], high)), d, out + (2 * k + 1) * stride);
  }
}

// Transposes the last columns of bf16 rows, fewer than eight. Reads them from a copy, because the
// memory may end with the row.
HWY_INLINE void TransposeTailBf16(const std::byte* const* rows, size_t offset, uint32_t depth,
                                  size_t stride, float* out) {
  std::byte copies[16][16] = {};
  const std::byte* copied[16];
  alignas(64) float columns[8 * 16];
  const size_t lanes = hn::Lanes(DF());
  for (size_t i = 0; i < lanes; ++i) {
    std::memcpy(copies[i], rows[i] + offset, depth * 2);
    copied[i] = copies[i];
  }
  TransposeEightBf16(copied, 0, 16, columns);
  for (uint32_t t = 0; t < depth; ++t) {
    std::memcpy(out + t * stride, columns + size_t{t} * 16, lanes * sizeof(float));
  }
}

// Computes out[d * packed_rows + i] = value d of query row i, for whole vectors of rows.
HWY_INLINE void PackRows(const std::byte* const* rows, uint32_t packed_rows, uint32_t d_qk,
                         float* out) {
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(DF()));
  for (uint32_t i = 0; i < packed_rows; i += lanes) {
    uint32_t t = 0;
    for (; t + 8 <= d_qk; t += 8) {
      TransposeEightBf16(rows + i, size_t{t} * 2, packed_rows, out + size_t{t} * packed_rows + i);
    }
    if (t < d_qk) {
      TransposeTailBf16(rows + i, size_t{t} * 2, d_qk - t, packed_rows,
                        out + size_t{t} * packed_rows + i);
    }
  }
}

// Computes keys[d][j] = column begin + d of rows[j], for whole vectors of rows.
HWY_INLINE void TransposePanel(const std::byte* const* rows, uint32_t begin, uint32_t depth,
                               uint32_t count, float* keys, NextTilePrefetch& prefetch) {
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(DF()));
  for (uint32_t j = 0; j < count; j += lanes) {
    uint32_t t = 0;
    for (; t + 8 <= depth; t += 8) {
      TransposeEightBf16(rows + j, size_t{begin + t} * 2, kKeyStride,
                         keys + size_t{t} * kKeyStride + j);
      // Half as many lines as were read; the value loops prefetch the rest.
      prefetch.Step((lanes + 7) / 8);
    }
    if (t < depth) {
      TransposeTailBf16(rows + j, size_t{begin + t} * 2, depth - t, kKeyStride,
                        keys + size_t{t} * kKeyStride + j);
    }
  }
}

// Multiplies kRows query rows by kVectors vectors of keys over one panel; see LogitBlock.
template <uint32_t kRows, uint32_t kVectors>
HWY_INLINE void NarrowLogitBlock(const float* HWY_RESTRICT q, uint32_t q_stride,
                                 const float* HWY_RESTRICT keys, const float* HWY_RESTRICT scales,
                                 uint32_t depth, bool first, float* HWY_RESTRICT logits) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sum[kRows][kVectors];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 5
    for (uint32_t v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  for (uint32_t t = 0; t < depth; ++t, keys += kKeyStride) {
    VF key[kVectors];
#pragma GCC unroll 5
    for (uint32_t v = 0; v < kVectors; ++v) key[v] = hn::Load(d, keys + v * lanes);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kRows; ++i) {
      const VF value = hn::Set(d, q[size_t{i} * q_stride + t]);
#pragma GCC unroll 5
      for (uint32_t v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(value, key[v], sum[i][v]);
    }
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 5
    for (uint32_t v = 0; v < kVectors; ++v) {
      float* to = logits + size_t{i} * kKeyStride + v * lanes;
      const VF scale = hn::Load(d, scales + v * lanes);
      hn::Store(first ? hn::Mul(sum[i][v], scale) : hn::MulAdd(sum[i][v], scale, hn::Load(d, to)),
                d, to);
    }
  }
}

// Multiplies kRows query rows by all keys of one transposed panel. Targets with 16 registers hold
// 2 x 4 accumulators; those with 32 hold 5 x 4.
template <uint32_t kRows>
HWY_INLINE void NarrowLogitRows(const float* q, uint32_t q_stride, const float* keys,
                                const float* scales, uint32_t depth, uint32_t count, bool first,
                                float* logits) {
  constexpr uint32_t kVectors = kWide ? 5 : 2;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(DF()));
  uint32_t j = 0;
  for (; j + (kVectors - 1) * lanes < count; j += kVectors * lanes) {
    NarrowLogitBlock<kRows, kVectors>(q, q_stride, keys + j, scales + j, depth, first, logits + j);
  }
  for (; j < count; j += lanes) {
    NarrowLogitBlock<kRows, 1>(q, q_stride, keys + j, scales + j, depth, first, logits + j);
  }
}

// Computes logits[i][j] = q_i . k_j for every key of the tile.
HWY_INLINE void NarrowLogits(const AttentionShape& shape, uint32_t query_rows,
                             const std::byte* const* rows, uint32_t count,
                             const BlockScratch& scratch, NextTilePrefetch& prefetch) {
  for (uint32_t begin = 0; begin < shape.d_qk; begin += kPanelWidth) {
    const uint32_t depth = std::min(kPanelWidth, shape.d_qk - begin);
    const float* scales = scratch.scales + begin / kPanelWidth * kKeyStride;
    const bool first = begin == 0;
    TransposePanel(rows, begin, depth, count, scratch.keys, prefetch);
    const float* q = scratch.q + begin;
    float* logits = scratch.logits;
    for (uint32_t i = 0; i < query_rows;) {
      const uint32_t left = query_rows - i;
      const uint32_t step = left >= 4 ? 4 : left >= 2 ? 2 : 1;
      if (step == 4) {
        NarrowLogitRows<4>(q, shape.d_qk, scratch.keys, scales, depth, count, first, logits);
      } else if (step == 2) {
        NarrowLogitRows<2>(q, shape.d_qk, scratch.keys, scales, depth, count, first, logits);
      } else {
        NarrowLogitRows<1>(q, shape.d_qk, scratch.keys, scales, depth, count, first, logits);
      }
      i += step;
      q += size_t{step} * shape.d_qk;
      logits += step * kKeyStride;
    }
  }
}

// Same as SoftmaxVector of mla_tile.inl.h, for one query row. Returns alpha.
HWY_INLINE float NarrowSoftmax(float scale_value, uint32_t visible, float* logits, float* m,
                               float* l) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, scale_value);
  const auto none = hn::Set(d, kEmptyM);
  auto lane_max = none;
  for (uint32_t j = 0; j < visible; j += lanes) {
    const auto index = hn::Iota(di, static_cast<int32_t>(j));
    const auto seen = hn::RebindMask(d, hn::Lt(index, hn::Set(di, static_cast<int32_t>(visible))));
    const auto logit = hn::IfThenElse(seen, hn::Mul(hn::Load(d, logits + j), scale), none);
    hn::Store(logit, d, logits + j);
    lane_max = hn::Max(lane_max, logit);
  }
  const auto old_max = hn::Set(d, *m);
  const auto new_max = hn::Max(old_max, hn::MaxOfLanes(d, lane_max));
  const auto base = hn::IfThenElse(hn::Eq(new_max, none), hn::Zero(d), new_max);
  const auto factor = ExpNonPositive(d, hn::Sub(old_max, base));
  for (uint32_t j = 0; j < visible; j += lanes) {
    hn::Store(ExpNonPositive(d, hn::Sub(hn::Load(d, logits + j), base)), d, logits + j);
  }
  float sum = 0;
  for (uint32_t j = 0; j < visible; ++j) sum += logits[j];
  *m = hn::GetLane(new_max);
  *l = hn::GetLane(hn::MulAdd(hn::Set(d, *l), factor, hn::Set(d, sum)));
  return hn::GetLane(factor);
}

// Multiplies kRows query rows by kPairs pairs of vectors of columns over `count` keys; see
// ValueBlock. A pair is the even and the odd columns of 32-bit words, which need no shuffle to
// widen. They are separate in o; WriteRow interleaves them.
template <uint32_t kRows, uint32_t kPairs>
HWY_INLINE void NarrowValueBlock(const std::byte* const* rows, const float* HWY_RESTRICT weights,
                                 uint32_t column, uint32_t count, const float* alpha, bool first,
                                 float* HWY_RESTRICT o, uint32_t o_stride,
                                 NextTilePrefetch& prefetch) {
  const DF d;
  const DU du;
  const size_t lanes = hn::Lanes(d);
  const VU high = hn::Set(du, 0xffff0000u);
  VF even[kRows][kPairs], odd[kRows][kPairs];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kPairs; ++v) even[i][v] = odd[i][v] = hn::Zero(d);
  }
  for (uint32_t j = 0; j < count; ++j) {
    const std::byte* at = rows[j] + size_t{column} * 2;
    prefetch.Step(2);
#if !HWY_COMPILER_MSVC
    // Prefetches the next columns, which the next pass reads from L1. Gains 4 % at 8 query rows.
    if constexpr (kRows == 8) __builtin_prefetch(at + 4 * lanes, /*rw=*/0, /*locality=*/3);
#endif
    VF weight[kRows];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
      weight[i] = hn::Set(d, weights[size_t{i} * kKeyStride + j]);
    }
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kPairs; ++v) {
      const VU both = LoadU32Lanes(du, at + v * lanes * 4);
      const VF low_value = hn::BitCast(d, hn::ShiftLeft<16>(both));
      const VF high_value = hn::BitCast(d, hn::And(both, high));
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kRows; ++i) {
        even[i][v] = hn::MulAdd(weight[i], low_value, even[i][v]);
        odd[i][v] = hn::MulAdd(weight[i], high_value, odd[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kRows; ++i) {
    const VF factor = hn::Set(d, alpha[i]);
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kPairs; ++v) {
      float* to = o + size_t{i} * o_stride + column + 2 * v * lanes;
      if (!first) {
        even[i][v] = hn::MulAdd(hn::Load(d, to), factor, even[i][v]);
        odd[i][v] = hn::MulAdd(hn::Load(d, to + lanes), factor, odd[i][v]);
      }
      hn::Store(even[i][v], d, to);
      hn::Store(odd[i][v], d, to + lanes);
    }
  }
}

// Multiplies one query row by the columns [begin, end), too few for a block. Computes one column at
// a time, because no model has a tail.
HWY_INLINE void NarrowValueTail(const std::byte* const* rows, const float* weights, uint32_t begin,
                                uint32_t end, uint32_t count, float alpha, bool first, float* o) {
  const hn::CappedTag<float, 1> d1;
  for (uint32_t c = begin; c < end; ++c) {
    auto sum = hn::Zero(d1);
    for (uint32_t j = 0; j < count; ++j) {
      const auto value = LoadBf16(d1, rows[j] + size_t{c} * 2);
      sum = hn::MulAdd(hn::Set(d1, weights[j]), value, sum);
    }
    if (!first) sum = hn::MulAdd(hn::Set(d1, o[c]), hn::Set(d1, alpha), sum);
    o[c] = hn::GetLane(sum);
  }
}

// Multiplies kRows query rows by the columns [begin, end). Accumulators, a pair of values and the
// weights fit the target's registers.
template <uint32_t kRows>
HWY_INLINE void NarrowValueRows(const std::byte* const* rows, const float* weights, uint32_t begin,
                                uint32_t end, uint32_t count, const float* alpha, bool first,
                                float* o, uint32_t o_stride, NextTilePrefetch& prefetch) {
  constexpr uint32_t kPairs = kRows == 8 ? 1 : (kWide ? 2 : 1) * (kRows == 4 ? 1 : 2);
  const uint32_t pair = 2 * static_cast<uint32_t>(hn::Lanes(DF()));
  uint32_t c = begin;
  for (; c + kPairs * pair <= end; c += kPairs * pair) {
    NarrowValueBlock<kRows, kPairs>(rows, weights, c, count, alpha, first, o, o_stride, prefetch);
  }
  for (; c + pair <= end; c += pair) {
    NarrowValueBlock<kRows, 1>(rows, weights, c, count, alpha, first, o, o_stride, prefetch);
  }
  for (uint32_t i = 0; c < end && i < kRows; ++i) {
    NarrowValueTail(rows, weights + size_t{i} * kKeyStride, c, end, count, alpha[i], first,
                    o + size_t{i} * o_stride);
  }
}

// Computes out[i][j] = weights[i][j] * scales[j].
HWY_INLINE void NarrowScaleWeights(const float* scales, uint32_t count, uint32_t query_rows,
                                   const float* weights, float* out) {
  const DF d;
  for (uint32_t i = 0; i < query_rows; ++i) {
    for (uint32_t j = 0; j < count; j += hn::Lanes(d)) {
      const size_t at = size_t{i} * kKeyStride + j;
      hn::Store(hn::Mul(hn::Load(d, weights + at), hn::Load(d, scales + j)), d, out + at);
    }
  }
}

// Computes o += weights x values for columns [begin, end). Rows with the same visible prefix are
// processed together, as in Values.
HWY_INLINE void NarrowValueColumns(const std::byte* const* rows, const float* weights,
                                   uint32_t query_rows, bool padded, const uint32_t* visible,
                                   const float* alpha, uint32_t begin, uint32_t end, bool first,
                                   float* o, uint32_t o_stride, NextTilePrefetch& prefetch) {
  constexpr uint32_t kStepMax = kWide ? 8 : 4;
  uint32_t i = 0;
  while (i < query_rows) {
    const uint32_t seen = visible[i];
    uint32_t same = 1;
    while (same < kStepMax && i + same < query_rows && visible[i + same] == seen) ++same;
    // mla_quad.inl.h pads the last group of 4 with rows that have weights of 0 and room in o. So
    // three rows are processed as four, five to seven as eight: one pass instead of two or three.
    if (padded && i % 4 == 0 && i + same == query_rows && same != 1 && same != 2) {
      same = same > 4 ? 8 : 4;
    }
    const uint32_t step = same == 8 ? 8 : same >= 4 ? 4 : same >= 2 ? 2 : 1;
    const float* w = weights + size_t{i} * kKeyStride;
    float* to = o + size_t{i} * o_stride;
    if (seen == 0 && !first) {
      // Adds nothing, because o * 1 + 0 would turn a -0 into +0.
    } else if (step == 8) {
      if constexpr (kWide) {
        NarrowValueRows<8>(rows, w, begin, end, seen, alpha + i, first, to, o_stride, prefetch);
      }
    } else if (step == 4) {
      NarrowValueRows<4>(rows, w, begin, end, seen, alpha + i, first, to, o_stride, prefetch);
    } else if (step == 2) {
      NarrowValueRows<2>(rows, w, begin, end, seen, alpha + i, first, to, o_stride, prefetch);
    } else {
      NarrowValueRows<1>(rows, w, begin, end, seen, alpha + i, first, to, o_stride, prefetch);
    }
    i += step;
  }
}

HWY_INLINE void NarrowValues(const AttentionShape& shape, uint32_t query_rows, bool padded,
                             const std::byte* const* rows, const uint32_t* visible,
                             const BlockScratch& scratch, const float* alpha, bool first, float* o,
                             NextTilePrefetch& prefetch) {
  const uint32_t o_stride = BlockState::o_stride(shape);
  if (shape.row_dtype == RowDtype::kBf16) {
    return NarrowValueColumns(rows, scratch.logits, query_rows, padded, visible, alpha, 0,
                              shape.d_v, first, o, o_stride, prefetch);
  }
  for (uint32_t begin = 0; begin < shape.d_v; begin += kFp8ScaleGroup) {
    NarrowScaleWeights(scratch.scales + begin / kPanelWidth * kKeyStride, kTileRows,
                       padded ? RoundUp(query_rows, 4) : query_rows, scratch.logits,
                       scratch.scaled);
    NarrowValueColumns(rows, scratch.scaled, query_rows, padded, visible, alpha, begin,
                       begin + kFp8ScaleGroup, first, o, o_stride, prefetch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
