// Converts cKV rows to the forms that the kernels compute with: bf16 and fp8_ds_mla to f32 panels,
// e4m3 to bf16. Compiled once per SIMD target.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/mla_block.h"

#if defined(CKV_ATTENTION_MLA_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CKV_ATTENTION_MLA_ROWS_INL_H_
#undef CKV_ATTENTION_MLA_ROWS_INL_H_
#else
#define CKV_ATTENTION_MLA_ROWS_INL_H_
#endif

#include "attention/simd_math.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// At most 16 lanes: packed_rows is a multiple of 16.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// Whether the target has the registers of AVX-512: 32 registers of 16 lanes. Other targets have 16
// registers, and so use 12 accumulators.
constexpr bool kWide = hn::MaxLanes(DF()) == 16;

HWY_INLINE float* PanelColumn(float* row_in_panel0, uint32_t column) {
  return row_in_panel0 + size_t{column / kPanelWidth} * kPanelFloats + column % kPanelWidth;
}

// Widens `count` bf16 values to f32 columns from `column` on. Pads the last vector with zeros.
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

// Kernels use e4m3 values times 2^-8, and their scales times 2^8, which is exact. The exponent of a
// normal value is then 112 + eeee. The bits of the two do not overlap, so one OrAnd combines them.
// The true exponent, 120 + eeee, would take a mask and an addition.
constexpr float kE4m3ScaleFactor = 256;

// Converts `count` e4m3 values, a multiple of 64, times 2^-8 to bf16, which represents each
// exactly. Takes any value.
//
// For x = s eeee mmm, the low byte of its bf16 is (e & 1) mmm 0000, which depends on the low nibble
// of x. The high byte is s and 56 + e / 2, which depends on the high nibble. So the high byte is
// one table look-up and the low byte a shift, 64 values at a time. Subnormals (e = 0: mmm x 2^-9)
// have their own tables.
HWY_NOINLINE void Bf16FromAnyE4m3(const uint8_t* in, uint32_t count, uint16_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (uint32_t i = 0; i < count; ++i)
    out[i] = Bf16FromFloat(FloatFromE4m3(in[i]) / kE4m3ScaleFactor);
#else
  const hn::CappedTag<uint8_t, 64> d8;
  const hn::Repartition<uint16_t, decltype(d8)> d16;
  const hn::Repartition<uint32_t, decltype(d8)> d32;
  const size_t bytes = hn::Lanes(d8);
  alignas(16) static constexpr uint8_t kHigh[16] = {56,  57,  58,  59,  60,  61,  62,  63,
                                                    184, 185, 186, 187, 188, 189, 190, 191};
  alignas(16) static constexpr uint8_t kSubnormalHigh[16] = {0,    0x37, 0x37, 0x37,
                                                             0x38, 0x38, 0x38, 0x38};
  alignas(16) static constexpr uint8_t kSubnormalLow[16] = {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60};
  const auto high_table = hn::LoadDup128(d8, kHigh);
  const auto subnormal_high = hn::LoadDup128(d8, kSubnormalHigh);
  const auto subnormal_low = hn::LoadDup128(d8, kSubnormalLow);
  // Interleaving works within 16-byte blocks. Moves 8-byte groups so that its result is in order.
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
    // A bf16 NaN has an exponent of all ones and a fraction that is not 0. Its low byte is 0xf0
    // already, and 0x7f in the high byte completes the exponent.
    const auto nan = hn::IfThenElseZero(is_nan, hn::Set(d8, uint8_t{0x7f}));
    const auto high = hn::Or(hn::IfThenElse(is_subnormal, tiny, normal), nan);
    auto* to = reinterpret_cast<uint8_t*>(out + i);
    hn::StoreU(hn::InterleaveLower(d8, low, high), d8, to);
    hn::StoreU(hn::InterleaveUpper(d8, low, high), d8, to + bytes);
  }
#endif
}

#if HWY_TARGET != HWY_SCALAR
// Whether no value is NaN, zero or subnormal: 8 <= magnitude <= 126 for all of them.
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

// Same as Bf16FromAnyE4m3. If values are scaled to a maximum of 448, one in 10,000 is smaller than
// the smallest normal value. So most rows have only normal values, whose bits are shifted into
// place: a third of the work of the tables.
HWY_INLINE void Bf16FromE4m3(const uint8_t* in, uint32_t count, uint16_t* out) {
#if HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(AllNormalE4m3(in, count))) {
    const hn::CappedTag<int16_t, 32> d16;
    const hn::Rebind<int8_t, decltype(d16)> d8;
    const auto kept = hn::Set(d16, static_cast<int16_t>(0x87f0));  // sign, exponent, fraction
    const auto bias = hn::Set(d16, int16_t{112 << 7});
    for (uint32_t i = 0; i < count; i += hn::Lanes(d16)) {
      const auto x = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(in + i)));
      const auto bits = hn::OrAnd(bias, hn::ShiftLeft<4>(x), kept);
      hn::StoreU(bits, d16, reinterpret_cast<int16_t*>(out + i));
    }
    return;
  }
#endif
  Bf16FromAnyE4m3(in, count, out);
}

// Writes a row's scales, one per panel, to scales[panel * kKeyStride]. Leaves the scales of the
// bf16 band's panels unchanged, at 1.
HWY_INLINE void CopyScales(const AttentionShape& shape, const std::byte* row, float* scales) {
  for (uint32_t c = 0; c < shape.d_v; c += kPanelWidth) {
    float scale;
    std::memcpy(&scale, row + shape.d_v + c / kFp8ScaleGroup * sizeof(float), sizeof(scale));
    scales[size_t{c / kPanelWidth} * kKeyStride] = scale * kE4m3ScaleFactor;
  }
}

// Returns the byte offset of a row's bf16 band.
constexpr size_t Fp8BandOffset(const AttentionShape& shape) {
  return shape.d_v + shape.d_v / kFp8ScaleGroup * sizeof(float);
}

// Converts one fp8_ds_mla row to bf16 [d_qk], without applying its scales.
HWY_INLINE void UnpackFp8DsMla(const AttentionShape& shape, const std::byte* row, uint16_t* out) {
  Bf16FromE4m3(reinterpret_cast<const uint8_t*>(row), shape.d_v, out);
  std::memcpy(out + shape.d_v, row + Fp8BandOffset(shape), (shape.d_qk - shape.d_v) * 2);
}

// Same as UnpackFp8DsMla, to f32 panels. Rows with only normal values are converted by shifts, as
// in Bf16FromE4m3.
HWY_INLINE void ConvertFp8DsMla(const AttentionShape& shape, const std::byte* row, float* out) {
#if HWY_TARGET != HWY_SCALAR
  const auto* values = reinterpret_cast<const uint8_t*>(row);
  if (HWY_LIKELY(AllNormalE4m3(values, shape.d_v))) {
    const DF d;
    const hn::RebindToSigned<DF> d32;
    const hn::Rebind<int8_t, DF> d8;
    const auto kept = hn::Set(d32, static_cast<int32_t>(0x87f00000u));
    const auto bias = hn::Set(d32, int32_t{112} << 23);
    for (uint32_t i = 0; i < shape.d_v; i += hn::Lanes(d)) {
      const auto x = hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(values + i)));
      const auto bits = hn::OrAnd(bias, hn::ShiftLeft<20>(x), kept);
      hn::StoreU(hn::BitCast(d, bits), d, PanelColumn(out, i));
    }
    ConvertBf16(row + Fp8BandOffset(shape), shape.d_qk - shape.d_v, shape.d_v, out);
    return;
  }
#endif
  alignas(64) uint16_t unpacked[kRowWidthMax];
  UnpackFp8DsMla(shape, row, unpacked);
  ConvertBf16(reinterpret_cast<const std::byte*>(unpacked), shape.d_qk, 0, out);
}

// Converts a tile's rows to f32 panels, once for both products. For fp8_ds_mla rows the panels hold
// e4m3 values, and `scales` their scales. The products apply the scales to sums of 64 columns and
// to weights: one multiplication per panel and key, not one per value.
HWY_INLINE void ConvertTile(const AttentionShape& shape, const std::byte* const* rows,
                            uint32_t count, float* tile, float* scales) {
  for (uint32_t j = 0; j < count; ++j) {
    float* out = tile + size_t{j} * kPanelWidth;
    if (shape.row_dtype == RowDtype::kBf16) {
      ConvertBf16(rows[j], shape.d_qk, 0, out);
    } else {
      CopyScales(shape, rows[j], scales + j);
      ConvertFp8DsMla(shape, rows[j], out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
