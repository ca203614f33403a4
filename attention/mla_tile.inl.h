// The inner loops of partial attention over one tile of cKV rows, compiled once per SIMD target.
//
// Layouts, all f32:
//   q        [d_qk][rows]                        query rows side by side: lanes are query rows
//   tile     [panels][kTileRows][kPanelWidth]    cKV rows, 64 columns a panel
//   logits   [kTileRows][kLogitStride]           one line per key, then the weights in place
//   o        [rows][o_stride]                    accumulators: lanes are columns

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/mla_block.h"

#if defined(CKV_ATTENTION_MLA_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CKV_ATTENTION_MLA_TILE_INL_H_
#undef CKV_ATTENTION_MLA_TILE_INL_H_
#else
#define CKV_ATTENTION_MLA_TILE_INL_H_
#endif

#include "attention/mla_rows.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// Prefetches the next tile's rows into L2, a few cache lines at a time, between the register blocks
// of this tile. Requested together, they would queue: 1296 lines, and only some 50 can be in
// flight. Half are prefetched while logits are computed, half while values are. At 16 query rows
// over 32768 rows this reached .60 of the FMA peak; prefetching during the logits only reached .54.
class NextTilePrefetch {
 public:
  NextTilePrefetch(const std::byte* const* rows, uint32_t count, uint32_t row_bytes)
      : rows_(rows), count_(count), row_bytes_(row_bytes) {}

  HWY_INLINE void Step(uint32_t line_count) {
    for (; line_count > 0 && row_ < count_; --line_count) {
#if !HWY_COMPILER_MSVC
      __builtin_prefetch(rows_[row_] + offset_, /*rw=*/0, /*locality=*/2);
#endif
      offset_ += 64;
      if (offset_ >= row_bytes_) {
        offset_ = 0;
        ++row_;
      }
    }
  }

 private:
  const std::byte* const* rows_;
  uint32_t count_;
  uint32_t row_bytes_;
  uint32_t row_ = 0;
  uint32_t offset_ = 0;
};

// Multiplies kVectors vectors of query rows by kKeys keys over one panel's depth. Products are
// summed from zero in ascending d. The sum times the key's scale is added to the logit, or stored
// as the logit if `first`. A scale of 1 leaves the bits of a plain sum.
template <uint32_t kVectors, uint32_t kKeys>
HWY_INLINE void LogitBlock(const float* HWY_RESTRICT q, uint32_t packed_rows,
                           const float* HWY_RESTRICT keys, const float* HWY_RESTRICT scales,
                           uint32_t depth, bool first, float* HWY_RESTRICT logits) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sum[kVectors][kKeys];
#pragma GCC unroll 24
  for (uint32_t j = 0; j < kKeys; ++j) {
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) sum[v][j] = hn::Zero(d);
  }
  for (uint32_t t = 0; t < depth; ++t, q += packed_rows) {
    VF row[kVectors];
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) row[v] = hn::Load(d, q + v * lanes);
#pragma GCC unroll 24
    for (uint32_t j = 0; j < kKeys; ++j) {
      const VF key = hn::Set(d, keys[j * kPanelWidth + t]);
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) sum[v][j] = hn::MulAdd(row[v], key, sum[v][j]);
    }
  }
#pragma GCC unroll 24
  for (uint32_t j = 0; j < kKeys; ++j) {
    const VF scale = hn::Set(d, scales[j]);
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) {
      float* to = logits + j * kLogitStride + v * lanes;
      hn::Store(first ? hn::Mul(sum[v][j], scale) : hn::MulAdd(sum[v][j], scale, hn::Load(d, to)),
                d, to);
    }
  }
}

// Processes all keys of the tile for kVectors vectors of query rows, panel by panel. Keys beyond
// `count` are stale rows of scratch: their logits are computed and never read.
template <uint32_t kVectors, uint32_t kKeys>
HWY_INLINE void LogitsOfRows(const AttentionShape& shape, const float* q, uint32_t packed_rows,
                             const float* tile, const float* scales, uint32_t count, float* logits,
                             NextTilePrefetch& prefetch) {
  static_assert(kTileRows % kKeys == 0);
  for (uint32_t begin = 0; begin < shape.d_qk; begin += kPanelWidth) {
    const uint32_t depth = std::min(kPanelWidth, shape.d_qk - begin);
    const float* panel = tile + size_t{begin / kPanelWidth} * kPanelFloats;
    for (uint32_t j = 0; j < count; j += kKeys) {
      prefetch.Step(kKeys);  // half of the tile; Values prefetches the rest
      LogitBlock<kVectors, kKeys>(q + size_t{begin} * packed_rows, packed_rows,
                                  panel + size_t{j} * kPanelWidth,
                                  scales + begin / kPanelWidth * kKeyStride + j, depth, begin == 0,
                                  logits + size_t{j} * kLogitStride);
    }
  }
}

// Computes logits[j][i] = q_i . k_j for every key of the tile and every packed row.
HWY_INLINE void Logits(const AttentionShape& shape, const float* q, uint32_t packed_rows,
                       const float* tile, const float* scales, uint32_t count, float* logits,
                       NextTilePrefetch& prefetch) {
  if constexpr (kWide) {
    switch (packed_rows / 16) {
      case 1:
        return LogitsOfRows<1, 24>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
      case 2:
        return LogitsOfRows<2, 12>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
      case 3:
        return LogitsOfRows<3, 8>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
      default:
        return LogitsOfRows<4, 6>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
    }
  } else {
    const uint32_t step = 2 * static_cast<uint32_t>(hn::Lanes(DF()));
    for (uint32_t i = 0; i < packed_rows; i += step) {
      LogitsOfRows<2, 6>(shape, q + i, packed_rows, tile, scales, count, logits + i, prefetch);
    }
  }
}

// Works on one vector of query rows: scales the tile's logits, updates the running maximum, turns
// logits into weights, and adds the weights to l. Row i sees the first `visible[i]` keys of the
// tile; the others get weight 0. A row that has seen no key keeps m = -inf.
HWY_INLINE void SoftmaxVector(float scale_value, const uint32_t* visible, uint32_t count,
                              float* logits, float* m, float* l, float* alpha) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto scale = hn::Set(d, scale_value);
  const auto none = hn::Set(d, kEmptyM);
  const auto seen = hn::Load(di, reinterpret_cast<const int32_t*>(visible));
  auto tile_max = none;
  for (uint32_t j = 0; j < count; ++j) {
    float* at = logits + size_t{j} * kLogitStride;
    const auto mask = hn::RebindMask(d, hn::Lt(hn::Set(di, static_cast<int32_t>(j)), seen));
    const auto logit = hn::IfThenElse(mask, hn::Mul(hn::Load(d, at), scale), none);
    hn::Store(logit, d, at);
    tile_max = hn::Max(tile_max, logit);
  }
  const auto old_max = hn::Load(d, m);
  const auto new_max = hn::Max(old_max, tile_max);
  // -inf - -inf would be NaN. If no key was seen, subtract 0 instead, so that every weight is 0.
  const auto base = hn::IfThenElse(hn::Eq(new_max, none), hn::Zero(d), new_max);
  const auto factor = ExpNonPositive(d, hn::Sub(old_max, base));
  auto sum = hn::Zero(d);
  for (uint32_t j = 0; j < count; ++j) {
    float* at = logits + size_t{j} * kLogitStride;
    const auto weight = ExpNonPositive(d, hn::Sub(hn::Load(d, at), base));
    hn::Store(weight, d, at);
    sum = hn::Add(sum, weight);
  }
  hn::Store(new_max, d, m);
  hn::Store(factor, d, alpha);
  hn::Store(hn::MulAdd(hn::Load(d, l), factor, sum), d, l);
}

// Multiplies kRows query rows by kVectors vectors of columns. Sums over the tile's keys from zero,
// then o = o * alpha + sum (first: o = sum). alpha is 1 while the maximum is unchanged.
template <uint32_t kRows, uint32_t kVectors>
HWY_INLINE void ValueBlock(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values,
                           uint32_t count, const float* alpha, bool first, float* HWY_RESTRICT o,
                           uint32_t o_stride) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sum[kRows][kVectors];
#pragma GCC unroll 6
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  for (uint32_t j = 0; j < count; ++j, values += kPanelWidth, weights += kLogitStride) {
    VF value[kVectors];
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) value[v] = hn::Load(d, values + v * lanes);
#pragma GCC unroll 6
    for (uint32_t i = 0; i < kRows; ++i) {
      const VF weight = hn::Set(d, weights[i]);
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(weight, value[v], sum[i][v]);
    }
  }
#pragma GCC unroll 6
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) {
      float* to = o + size_t{i} * o_stride + v * lanes;
      const VF old = hn::Load(d, to);
      hn::Store(first ? sum[i][v] : hn::MulAdd(old, hn::Set(d, alpha[i]), sum[i][v]), d, to);
    }
  }
}

// Multiplies kRows query rows by all columns of one panel that contain values.
template <uint32_t kRows>
HWY_INLINE void ValuePanel(const float* weights, const float* panel, uint32_t width, uint32_t count,
                           const float* alpha, bool first, float* o, uint32_t o_stride) {
  constexpr uint32_t kVectors = kWide ? 4 : 2;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(DF()));
  uint32_t c = 0;
  for (; c + kVectors * lanes <= width; c += kVectors * lanes) {
    ValueBlock<kRows, kVectors>(weights, panel + c, count, alpha, first, o + c, o_stride);
  }
  // The last vector may extend into columns past d_v: they are computed and never written out.
  for (; c < width; c += lanes) {
    ValueBlock<kRows, 1>(weights, panel + c, count, alpha, first, o + c, o_stride);
  }
}

// Computes out[j][i] = weights[j][i] * scales[j].
HWY_INLINE void ScaleWeights(const float* scales, uint32_t count, uint32_t packed_rows,
                             const float* weights, float* out) {
  const DF d;
  for (uint32_t j = 0; j < count; ++j) {
    const VF scale = hn::Set(d, scales[j]);
    for (uint32_t i = 0; i < packed_rows; i += hn::Lanes(d)) {
      const size_t at = size_t{j} * kLogitStride + i;
      hn::Store(hn::Mul(hn::Load(d, weights + at), scale), d, out + at);
    }
  }
}

// Computes o += weights x values. A row with a shorter visible prefix than its neighbors is
// processed alone, up to the end of its prefix. Beyond it, a weight of 0 times a NaN would still be
// NaN.
HWY_INLINE void Values(const AttentionShape& shape, uint32_t query_rows, uint32_t count,
                       const uint32_t* visible, const BlockScratch& scratch, const float* alpha,
                       bool first, const BlockState& state, NextTilePrefetch& prefetch) {
  const uint32_t o_stride = BlockState::o_stride(shape);
  const bool scaled = shape.row_dtype == RowDtype::kFp8DsMla;
  const float* weights = scaled ? scratch.scaled : scratch.logits;
  for (uint32_t begin = 0; begin < shape.d_v; begin += kPanelWidth) {
    const uint32_t width = std::min(kPanelWidth, shape.d_v - begin);
    const float* panel = scratch.tile + size_t{begin / kPanelWidth} * kPanelFloats;
    if (scaled && begin % kFp8ScaleGroup == 0) {
      ScaleWeights(scratch.scales + begin / kPanelWidth * kKeyStride, count,
                   RoundUp(query_rows, 16), scratch.logits, scratch.scaled);
    }
    uint32_t i = 0;
    while (i < query_rows) {
      const uint32_t seen = visible[i];
      uint32_t same = 1;
      while (same < 6 && i + same < query_rows && visible[i + same] == seen) ++same;
      const uint32_t step = same == 6 ? 6 : same >= 4 ? 4 : 1;
      float* o = state.o + size_t{i} * o_stride + begin;
      prefetch.Step(27);
      if (seen == 0 && !first) {
        // Nothing to add, and o * 1 + 0 would turn a -0 into +0.
      } else if (step == 6) {
        ValuePanel<6>(weights + i, panel, width, seen, alpha + i, first, o, o_stride);
      } else if (step == 4) {
        ValuePanel<4>(weights + i, panel, width, seen, alpha + i, first, o, o_stride);
      } else {
        ValuePanel<1>(weights + i, panel, width, seen, alpha + i, first, o, o_stride);
      }
      i += step;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
