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

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/mla_block.h"

#if defined(CKV_ATTENTION_MLA_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CKV_ATTENTION_MLA_TILE_INL_H_
#undef CKV_ATTENTION_MLA_TILE_INL_H_
#else
#define CKV_ATTENTION_MLA_TILE_INL_H_
#endif

#include "attention/simd_math.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// At most 16 lanes: packed_rows is a multiple of 16.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// Whether the target has the registers of AVX-512: 32 of 16 lanes. Others have 16, so 12
// accumulators.
constexpr bool kWide = hn::MaxLanes(DF()) == 16;

HWY_INLINE float* PanelColumn(float* row_in_panel0, uint32_t column) {
  return row_in_panel0 + size_t{column / kPanelWidth} * kPanelFloats + column % kPanelWidth;
}

// Widens `count` bf16 values to the columns from `column` on; the last vector is padded with zeros.
HWY_INLINE void ConvertBf16(const std::byte* in, uint32_t count, uint32_t column, float* out) {
  const DF d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(LoadBf16(d, in + 2 * i), d, PanelColumn(out, column + i));
  }
  if (i < count) {
    alignas(64) uint16_t tail[16] = {};
    std::memcpy(tail, in + 2 * i, 2 * (count - i));
    hn::StoreU(LoadBf16(d, tail), d, PanelColumn(out, column + i));
  }
}

// `count` e4m3 values, a multiple of 64, as bf16, which holds each exactly; any value.
//
// Of x = s eeee mmm, the low byte of its bf16 is (e & 1) mmm 0000, its low nibble, and the high
// byte is s and 60 + e / 2 (the biases differ by 120), a function of its high nibble: one table
// look-up each, 64 values at a time. Subnormals (e = 0: mmm x 2^-9) have tables of their own.
HWY_NOINLINE void Bf16FromAnyE4m3(const uint8_t* in, uint32_t count, uint16_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (uint32_t i = 0; i < count; ++i) out[i] = Bf16FromFloat(FloatFromE4m3(in[i]));
#else
  const hn::CappedTag<uint8_t, 64> d8;
  const hn::Repartition<uint16_t, decltype(d8)> d16;
  const hn::Repartition<uint32_t, decltype(d8)> d32;
  const size_t bytes = hn::Lanes(d8);
  alignas(16) static constexpr uint8_t kHigh[16] = {60,  61,  62,  63,  64,  65,  66,  67,
                                                    188, 189, 190, 191, 192, 193, 194, 195};
  alignas(16) static constexpr uint8_t kSubnormalHigh[16] = {0,    0x3b, 0x3b, 0x3b,
                                                             0x3c, 0x3c, 0x3c, 0x3c};
  alignas(16) static constexpr uint8_t kSubnormalLow[16] = {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60};
  const auto high_table = hn::LoadDup128(d8, kHigh);
  const auto subnormal_high = hn::LoadDup128(d8, kSubnormalHigh);
  const auto subnormal_low = hn::LoadDup128(d8, kSubnormalLow);
  // Interleaving works within 16-byte blocks: 8-byte pieces are put where it leaves them in order.
  alignas(64) int32_t order[16];
  for (size_t i = 0; i < bytes / 16; ++i) {
    for (size_t half = 0; half < 2; ++half) {
      for (size_t word = 0; word < 2; ++word) {
        order[4 * i + 2 * half + word] = static_cast<int32_t>(2 * i + half * bytes / 8 + word);
      }
    }
  }
  const auto indices = hn::SetTableIndices(d32, order);
  for (uint32_t i = 0; i < count; i += bytes) {
    const auto loaded = hn::BitCast(d32, hn::LoadU(d8, in + i));
    const auto x = hn::BitCast(d8, hn::TableLookupLanes(loaded, indices));
    const auto nibble = hn::And(x, hn::Set(d8, uint8_t{0x0f}));
    const auto shifted = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x)));
    const auto upper = hn::And(shifted, hn::Set(d8, uint8_t{0x0f}));
    const auto raised = hn::BitCast(d8, hn::ShiftLeft<4>(hn::BitCast(d16, nibble)));
    const auto magnitude = hn::And(x, hn::Set(d8, uint8_t{0x7f}));
    const auto sign = hn::And(x, hn::Set(d8, uint8_t{0x80}));
    const auto is_subnormal = hn::Eq(hn::And(x, hn::Set(d8, uint8_t{0x78})), hn::Zero(d8));
    const auto is_nan = hn::Eq(magnitude, hn::Set(d8, uint8_t{0x7f}));
    const auto low =
        hn::IfThenElse(is_subnormal, hn::TableLookupBytes(subnormal_low, nibble), raised);
    const auto normal = hn::TableLookupBytes(high_table, upper);
    const auto tiny = hn::Or(hn::TableLookupBytes(subnormal_high, nibble), sign);
    // All ones in the exponent and some in the fraction, which 0x7f has: a NaN.
    const auto nan = hn::IfThenElseZero(is_nan, hn::Set(d8, uint8_t{0x7f}));
    const auto high = hn::Or(hn::IfThenElse(is_subnormal, tiny, normal), nan);
    auto* to = reinterpret_cast<uint8_t*>(out + i);
    hn::StoreU(hn::InterleaveLower(d8, low, high), d8, to);
    hn::StoreU(hn::InterleaveUpper(d8, low, high), d8, to + bytes);
  }
#endif
}

#if HWY_TARGET != HWY_SCALAR
// Whether no value is NaN, zero or subnormal, that is 8 <= magnitude <= 126 for all.
HWY_INLINE bool AllNormalE4m3(const uint8_t* in, uint32_t count) {
  const hn::CappedTag<uint8_t, 64> d8;
  const auto magnitude_bits = hn::Set(d8, uint8_t{0x7f});
  const auto eight = hn::Set(d8, uint8_t{8}), limit = hn::Set(d8, uint8_t{126 - 8});
  auto max = limit;
  for (uint32_t i = 0; i < count; i += hn::Lanes(d8)) {
    max = hn::Max(max, hn::Sub(hn::And(hn::LoadU(d8, in + i), magnitude_bits), eight));
  }
  return hn::AllTrue(d8, hn::Eq(max, limit));
}
#endif

// As Bf16FromAnyE4m3. Values scaled to 448 are smaller than the smallest normal one 1e-4 of the
// time, so most rows have normal ones only, whose bits are shifted into place and re-biased: half
// the work of the tables.
HWY_INLINE void Bf16FromE4m3(const uint8_t* in, uint32_t count, uint16_t* out) {
#if HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(AllNormalE4m3(in, count))) {
    const hn::CappedTag<int16_t, 32> d16;
    const hn::Rebind<int8_t, decltype(d16)> d8;
    const auto kept = hn::Set(d16, static_cast<int16_t>(0x87f0));  // sign, exponent, fraction
    const auto bias = hn::Set(d16, int16_t{120 << 7});
    for (uint32_t i = 0; i < count; i += hn::Lanes(d16)) {
      const auto x = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(in + i)));
      const auto bits = hn::Add(hn::And(hn::ShiftLeft<4>(x), kept), bias);
      hn::StoreU(bits, d16, reinterpret_cast<int16_t*>(out + i));
    }
    return;
  }
#endif
  Bf16FromAnyE4m3(in, count, out);
}

// One fp8_ds_mla row as bf16 [d_qk], its values not yet scaled, and its scales, one a panel:
// scales[panel * kKeyStride].
HWY_INLINE void UnpackFp8DsMla(const AttentionShape& shape, const std::byte* row, uint16_t* out,
                               float* scales) {
  Bf16FromE4m3(reinterpret_cast<const uint8_t*>(row), shape.d_v, out);
  const size_t band = shape.d_v + shape.d_v / kFp8ScaleGroup * sizeof(float);
  std::memcpy(out + shape.d_v, row + band, (shape.d_qk - shape.d_v) * sizeof(uint16_t));
  for (uint32_t c = 0; c < shape.d_v; c += kPanelWidth) {
    std::memcpy(scales + size_t{c / kPanelWidth} * kKeyStride,
                row + shape.d_v + c / kFp8ScaleGroup * sizeof(float), sizeof(float));
  }
}

// Converts a tile's rows to f32 panels, once for both products. Of fp8_ds_mla rows the panels hold
// e4m3 values and `scales` their scales, which both products apply to sums of 64 columns and to
// weights: a multiplication per panel and key instead of one per value.
HWY_INLINE void ConvertTile(const AttentionShape& shape, const std::byte* const* rows,
                            uint32_t count, float* tile, float* scales) {
  for (uint32_t j = 0; j < count; ++j) {
    float* out = tile + size_t{j} * kPanelWidth;
    if (shape.row_dtype == RowDtype::kBf16) {
      ConvertBf16(rows[j], shape.d_qk, 0, out);
    } else {
      alignas(64) uint16_t values[kRowWidthMax];
      UnpackFp8DsMla(shape, rows[j], values, scales + j);
      ConvertBf16(reinterpret_cast<const std::byte*>(values), shape.d_qk, 0, out);
    }
  }
}

// The next tile's rows, fetched into L2 a few lines at a time between the register blocks of this
// tile: all at once they would queue behind each other (1296 lines against some 50 in flight). Half
// while logits are computed and half while values are: at 16 query rows over 32768 rows this gave
// .60 of the FMA peak where asking during the logits alone gave .54.
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

// kVectors vectors of query rows times kKeys keys over one panel's depth: products summed from
// zero in ascending d, then times the keys' scales added to (first: stored as) the logits. A scale
// of 1 leaves the bits of a plain sum.
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

// All keys of the tile for kVectors vectors of query rows, one panel after the other. Keys beyond
// `count` are stale rows of scratch: their logits are computed and never read.
template <uint32_t kVectors, uint32_t kKeys>
HWY_INLINE void LogitColumns(const AttentionShape& shape, const float* q, uint32_t packed_rows,
                             const float* tile, const float* scales, uint32_t count, float* logits,
                             NextTilePrefetch& prefetch) {
  static_assert(kTileRows % kKeys == 0);
  for (uint32_t begin = 0; begin < shape.d_qk; begin += kPanelWidth) {
    const uint32_t depth = std::min(kPanelWidth, shape.d_qk - begin);
    const float* panel = tile + size_t{begin / kPanelWidth} * kPanelFloats;
    for (uint32_t j = 0; j < count; j += kKeys) {
      prefetch.Step(kKeys);  // half of the tile; Values asks for the rest
      LogitBlock<kVectors, kKeys>(q + size_t{begin} * packed_rows, packed_rows,
                                  panel + size_t{j} * kPanelWidth,
                                  scales + begin / kPanelWidth * kKeyStride + j, depth, begin == 0,
                                  logits + size_t{j} * kLogitStride);
    }
  }
}

// logits[j][i] = q_i . k_j for every key of the tile and every packed row.
HWY_INLINE void Logits(const AttentionShape& shape, const float* q, uint32_t packed_rows,
                       const float* tile, const float* scales, uint32_t count, float* logits,
                       NextTilePrefetch& prefetch) {
  if constexpr (kWide) {
    switch (packed_rows / 16) {
      case 1:
        return LogitColumns<1, 24>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
      case 2:
        return LogitColumns<2, 12>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
      case 3:
        return LogitColumns<3, 8>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
      default:
        return LogitColumns<4, 6>(shape, q, packed_rows, tile, scales, count, logits, prefetch);
    }
  } else {
    const uint32_t step = 2 * static_cast<uint32_t>(hn::Lanes(DF()));
    for (uint32_t i = 0; i < packed_rows; i += step) {
      LogitColumns<2, 6>(shape, q + i, packed_rows, tile, scales, count, logits + i, prefetch);
    }
  }
}

// One vector of query rows: scales the tile's logits, moves the running maximum, turns logits into
// weights, and adds them to l. `visible[i]` keys of the tile are seen by row i, a prefix; the
// others get weight 0. A row that has seen nothing keeps m = -inf.
HWY_INLINE void SoftmaxColumn(float scale_value, const uint32_t* visible, uint32_t count,
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
  // -inf - -inf would be NaN: with nothing seen, measure from 0, so that every weight is 0.
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

// kRows query rows times kVectors vectors of columns: sum over the tile's keys from zero, then
// o = o * alpha + sum (first: o = sum). alpha is 1 while the maximum stands still.
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

// kRows query rows times all columns of one panel that hold values.
template <uint32_t kRows>
HWY_INLINE void ValuePanel(const float* weights, const float* panel, uint32_t width, uint32_t count,
                           const float* alpha, bool first, float* o, uint32_t o_stride) {
  constexpr uint32_t kVectors = kWide ? 4 : 2;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(DF()));
  uint32_t c = 0;
  for (; c + kVectors * lanes <= width; c += kVectors * lanes) {
    ValueBlock<kRows, kVectors>(weights, panel + c, count, alpha, first, o + c, o_stride);
  }
  // The last vector may reach into columns past d_v: they are computed and never written out.
  for (; c < width; c += lanes) {
    ValueBlock<kRows, 1>(weights, panel + c, count, alpha, first, o + c, o_stride);
  }
}

// out[j][i] = weights[j][i] * scales[j].
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

// o += weights x values. A row whose visible prefix is shorter than its neighbours' goes alone and
// stops there: a weight of 0 would still turn a NaN it must not see into NaN.
HWY_INLINE void Values(const AttentionShape& shape, const RowBlock& block, uint32_t count,
                       const uint32_t* visible, const BlockScratch& scratch, const float* alpha,
                       bool first, const BlockState& state, NextTilePrefetch& prefetch) {
  const uint32_t o_stride = BlockState::o_stride(shape);
  const bool scaled = shape.row_dtype == RowDtype::kFp8DsMla;
  const float* weights = scaled ? scratch.scaled : scratch.logits;
  for (uint32_t begin = 0; begin < shape.d_v; begin += kPanelWidth) {
    const uint32_t width = std::min(kPanelWidth, shape.d_v - begin);
    const float* panel = scratch.tile + size_t{begin / kPanelWidth} * kPanelFloats;
    if (scaled && begin % kFp8ScaleGroup == 0) {
      ScaleWeights(scratch.scales + begin / kPanelWidth * kKeyStride, count, block.packed_rows(),
                   scratch.logits, scratch.scaled);
    }
    uint32_t i = 0;
    while (i < block.count) {
      const uint32_t seen = visible[i];
      uint32_t same = 1;
      while (same < 6 && i + same < block.count && visible[i + same] == seen) ++same;
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
