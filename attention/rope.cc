// RoPE in three parts:
//   1. Kernels that rotate bands of bf16 or f32, interleaved or half split, compiled for each
//      target.
//   2. The numbers of a rotation: frequencies with YaRN, its amplitude, and cos and sin for a
//      delta.
//   3. The entry points: rotation in place, with a copy, into blocks, and of fp8 rows. They copy
//      without arithmetic if the rotation changes nothing.

#include "attention/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "proto/base/status.h"

#ifndef CKV_ATTENTION_ROPE_ONCE_
#define CKV_ATTENTION_ROPE_ONCE_
namespace ckv {

// A rotation's numbers, as the kernels take them.
struct RopeTable {
  RopeStyle style;
  const float* cos;  // [pairs]
  const float* sin;  // [pairs]
  size_t pairs;
};

}  // namespace ckv
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/rope.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file again for every target.
#include "attention/simd_math.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// One multiply and one fused multiply-add a component, in this order everywhere.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void Turn(D /*d*/, V cos, V sin, V* x, V* y) {
  const V turned_x = hn::NegMulAdd(*y, sin, hn::Mul(*x, cos));
  *y = hn::MulAdd(*x, sin, hn::Mul(*y, cos));
  *x = turned_x;
}

// Rotates `pairs` pairs of bf16 (2i, 2i + 1), a multiple of the lanes. One u32 lane holds a pair,
// so widening needs no shuffle.
template <class D>
HWY_INLINE void TurnInterleaved([[maybe_unused]] D d, const float* cos, const float* sin,
                                size_t pairs, std::byte* band) {
  const hn::RebindToUnsigned<D> du;
  const auto high = hn::Set(du, 0xffff0000u);
  for (size_t i = 0; i < pairs; i += hn::Lanes(d)) {
    const auto both = LoadU32Lanes(du, band + 4 * i);
    auto x = hn::BitCast(d, hn::ShiftLeft<16>(both));
    auto y = hn::BitCast(d, hn::And(both, high));
    Turn(d, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i), &x, &y);
    const auto out = hn::Or(RoundToBf16(d, x), hn::ShiftLeft<16>(RoundToBf16(d, y)));
    StoreU32Lanes(du, out, band + 4 * i);
  }
}

// Rotates pairs (i, i + half).
template <class D>
HWY_INLINE void TurnHalfSplit([[maybe_unused]] D d, const float* cos, const float* sin,
                              size_t pairs, size_t half, std::byte* band) {
  for (size_t i = 0; i < pairs; i += hn::Lanes(d)) {
    auto x = LoadBf16(d, band + 2 * i);
    auto y = LoadBf16(d, band + 2 * (half + i));
    Turn(d, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i), &x, &y);
    StoreU16Lanes(d, RoundToBf16(d, x), band + 2 * i);
    StoreU16Lanes(d, RoundToBf16(d, y), band + 2 * (half + i));
  }
}

// `band` is bf16 [2 * pairs] at any address.
HWY_INLINE void TurnBand(const RopeTable& table, std::byte* band) {
  const hn::CappedTag<float, 16> d;
  const float* cos = table.cos;
  const float* sin = table.sin;
  const size_t pairs = table.pairs;
  const size_t whole = pairs / hn::Lanes(d) * hn::Lanes(d);
  // Fewer pairs than lanes are left: a pass over them with one lane does the same sums.
  const hn::CappedTag<float, 1> d1;
  if (table.style == RopeStyle::kInterleaved) {
    TurnInterleaved(d, cos, sin, whole, band);
    TurnInterleaved(d1, cos + whole, sin + whole, pairs - whole, band + 4 * whole);
  } else {
    TurnHalfSplit(d, cos, sin, whole, pairs, band);
    TurnHalfSplit(d1, cos + whole, sin + whole, pairs - whole, pairs, band + 2 * whole);
  }
}

// A band is two lines of every 18, which a hardware prefetcher does not see. So the lines of the
// row kPrefetchRows ahead are prefetched by hand. 16 rows are about a memory latency of turning.
constexpr size_t kPrefetchRows = 16;

// Rotates the bands of `count` rows, `stride_bytes` apart.
void TurnBandsBf16(const RopeTable& table, std::byte* band, uint32_t count, size_t stride_bytes) {
  const size_t band_bytes = 4 * table.pairs;
  for (uint32_t i = 0; i < count; ++i, band += stride_bytes) {
    if (count - i > kPrefetchRows) {
      const std::byte* ahead = band + kPrefetchRows * stride_bytes;
      __builtin_prefetch(ahead, /*rw=*/1);
      __builtin_prefetch(ahead + band_bytes - 1, /*rw=*/1);
    }
    TurnBand(table, band);
  }
}

// How far ahead both ends of a copy are prefetched. Rows of 1.1 KB are too short for the hardware
// prefetcher to run ahead of them. Memory delivers 4 of them in its latency.
constexpr size_t kCopyAheadRows = 4;

// Copies rows of `row_bytes` and turns their bands, their last bytes, while they are in L1.
void CopyTurnedRows(const RopeTable& table, const std::byte* in, size_t in_stride, std::byte* out,
                    uint32_t count, size_t row_bytes) {
  const size_t band = row_bytes - 4 * table.pairs;
  for (uint32_t i = 0; i < count; ++i, in += in_stride, out += row_bytes) {
    if (count - i > kCopyAheadRows) {
      for (size_t c = 0; c < row_bytes; c += 64) {
        __builtin_prefetch(in + kCopyAheadRows * in_stride + c, /*rw=*/0, /*locality=*/2);
        __builtin_prefetch(out + kCopyAheadRows * row_bytes + c, /*rw=*/1, /*locality=*/2);
      }
    }
    std::memcpy(out, in, row_bytes);
    TurnBand(table, out + band);
  }
}

template <class D>
HWY_INLINE void TurnInterleavedF32([[maybe_unused]] D d, const float* cos, const float* sin,
                                   size_t pairs, float* band) {
  for (size_t i = 0; i < pairs; i += hn::Lanes(d)) {
    hn::Vec<D> x, y;
    hn::LoadInterleaved2(d, band + 2 * i, x, y);
    Turn(d, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i), &x, &y);
    hn::StoreInterleaved2(x, y, d, band + 2 * i);
  }
}

template <class D>
HWY_INLINE void TurnHalfSplitF32([[maybe_unused]] D d, const float* cos, const float* sin,
                                 size_t pairs, size_t half, float* band) {
  for (size_t i = 0; i < pairs; i += hn::Lanes(d)) {
    auto x = hn::LoadU(d, band + i);
    auto y = hn::LoadU(d, band + half + i);
    Turn(d, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i), &x, &y);
    hn::StoreU(x, d, band + i);
    hn::StoreU(y, d, band + half + i);
  }
}

void TurnBandsF32(const RopeTable& table, float* band, uint32_t count, size_t stride) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> d1;
  const size_t pairs = table.pairs;
  const size_t whole = pairs / hn::Lanes(d) * hn::Lanes(d), rest = pairs - whole;
  const float* cos = table.cos;
  const float* sin = table.sin;
  for (uint32_t i = 0; i < count; ++i, band += stride) {
    if (table.style == RopeStyle::kInterleaved) {
      TurnInterleavedF32(d, cos, sin, whole, band);
      TurnInterleavedF32(d1, cos + whole, sin + whole, rest, band + 2 * whole);
    } else {
      TurnHalfSplitF32(d, cos, sin, whole, pairs, band);
      TurnHalfSplitF32(d1, cos + whole, sin + whole, rest, pairs, band + whole);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {
namespace {

HWY_EXPORT(TurnBandsBf16);
HWY_EXPORT(CopyTurnedRows);
HWY_EXPORT(TurnBandsF32);

// Returns the index i, not rounded, at which theta^(-2i / d_rope) turns `turns` times over
// `position`.
double CorrectionIndex(double turns, uint32_t d_rope, double theta, double position) {
  return d_rope * std::log(position / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

bool TouchesNothing(const RopeRotation& rotation) {
  return rotation.is_identity() || rotation.style() == RopeStyle::kNone || rotation.d_rope() == 0;
}

RopeTable TableOf(const RopeRotation& rotation) {
  return {rotation.style(), rotation.cos().data(), rotation.sin().data(), rotation.cos().size()};
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeParams& params, uint32_t d_rope) {
  const uint32_t pairs = d_rope / 2;
  std::vector<double> frequencies(pairs);
  for (uint32_t i = 0; i < pairs; ++i) frequencies[i] = std::pow(params.theta, -2.0 * i / d_rope);
  if (!params.yarn) return frequencies;
  const YarnParams& yarn = *params.yarn;
  const auto index = [&](double turns) {
    return CorrectionIndex(turns, d_rope, params.theta, yarn.original_max_position);
  };
  // Pairs below `low` turn often enough to stay as they are, pairs above `high` are interpolated.
  const double low = std::max(std::floor(index(yarn.beta_fast)), 0.0);
  double high = std::min(std::ceil(index(yarn.beta_slow)), d_rope - 1.0);
  if (low == high) high += 0.001;  // DeepSeek's guard; the ramp is then a step
  for (uint32_t i = 0; i < pairs; ++i) {
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / yarn.factor * ramp + frequencies[i] * (1 - ramp);
  }
  return frequencies;
}

RopeRotation::RopeRotation(const RopeParams& params, uint32_t d_rope, int64_t delta)
    : identity_(delta == 0), style_(params.style), d_rope_(d_rope) {
  const std::vector<double> frequencies = RopeFrequencies(params, d_rope);
  for (const double frequency : frequencies) {
    // |delta| < 2^40 or so: the product has 53 bits, and f64 cos and sin reduce it exactly.
    const double angle = frequency * static_cast<double>(delta);
    cos_.push_back(static_cast<float>(std::cos(angle)));
    sin_.push_back(static_cast<float>(std::sin(angle)));
  }
}

void RotateBandsF32(const RopeRotation& rotation, float* rows, uint32_t count, uint32_t width,
                    uint32_t stride) noexcept {
  if (TouchesNothing(rotation) || count == 0) return;
  CKV_CHECK(rotation.d_rope() <= width && width <= stride);
  HWY_DYNAMIC_DISPATCH(TurnBandsF32)
  (TableOf(rotation), rows + width - rotation.d_rope(), count, stride);
}

void CopyRotatedRows(const RopeRotation& rotation, const std::byte* in, size_t in_stride_bytes,
                     std::byte* out, uint32_t count, uint32_t row_bytes) noexcept {
  if (count == 0) return;  // its pointers may be null, which memcpy does not take
  if (TouchesNothing(rotation)) {
    if (in_stride_bytes == row_bytes) {
      std::memcpy(out, in, size_t{count} * row_bytes);
      return;
    }
    for (uint32_t i = 0; i < count; ++i)
      std::memcpy(out + size_t{i} * row_bytes, in + i * in_stride_bytes, row_bytes);
    return;
  }
  CKV_CHECK(rotation.d_rope() * 2 <= row_bytes);
  HWY_DYNAMIC_DISPATCH(CopyTurnedRows)
  (TableOf(rotation), in, in_stride_bytes, out, count, row_bytes);
}

void ScatterRotatedRows(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                        const PagedPlace& to) noexcept {
  const uint32_t block_rows = to.block_rows;
  CKV_CHECK(block_rows > 0);
  const uint64_t row_count_max = uint64_t{to.table.size()} * block_rows;
  CKV_CHECK(to.row_begin <= row_count_max && rows.count <= row_count_max - to.row_begin);
  const uint64_t end = to.row_begin + rows.count;
  for (uint64_t row = to.row_begin; row < end;) {
    // Blocks that are neighbours are one copy.
    size_t block = row / block_rows;
    const uint64_t slot = uint64_t{to.table[block]} * block_rows + row % block_rows;
    while ((block + 1) * block_rows < end && to.table[block + 1] == to.table[block] + 1) ++block;
    const uint64_t run = std::min<uint64_t>((block + 1) * block_rows, end) - row;
    CKV_CHECK((slot + run) * row_bytes <= to.layer.size());
    CopyRotatedRows(rotation, rows.data + (row - to.row_begin) * rows.stride_bytes,
                    rows.stride_bytes, to.layer.data() + slot * row_bytes,
                    static_cast<uint32_t>(run), row_bytes);
    row += run;
  }
}

void RotateBandsFp8DsMla(const RopeRotation& rotation, std::byte* rows, uint32_t count,
                         uint32_t row_bytes, uint32_t stride_bytes) noexcept {
  if (TouchesNothing(rotation) || count == 0) return;
  CKV_CHECK(rotation.d_rope() * 2 <= row_bytes && row_bytes <= stride_bytes);
  HWY_DYNAMIC_DISPATCH(TurnBandsBf16)
  (TableOf(rotation), rows + (row_bytes - rotation.d_rope() * 2), count, stride_bytes);
}

}  // namespace ckv
#endif  // HWY_ONCE
