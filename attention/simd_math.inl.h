// Vector helpers that every kernel of this folder shares, compiled once per SIMD target.
//
// The toggle below is Highway's per-target include guard: the file is included once for each
// target.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(CKV_ATTENTION_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CKV_ATTENTION_SIMD_MATH_INL_H_
#undef CKV_ATTENTION_SIMD_MATH_INL_H_
#else
#define CKV_ATTENTION_SIMD_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The lowest argument of exp(); below it the result is 0. exp(-87) = 1.6e-38 is about the last
// result above FLT_MIN. A weight that far below the maximum cannot change an f32 sum.
constexpr float kExpFlush = -87.0f;

// Computes exp(x) for x <= 0 with a relative error <= 2^-22.6 (1.6e-7, checked over the range by
// mla_partial_test). The result is exactly 1 at 0, and exactly 0 below kExpFlush and at -inf. NaN
// stays NaN.
//
// x = n ln2 + r with |r| <= ln2 / 2; ln2 is split so that n * kLn2High is exact even without FMA.
// The Taylor polynomial of degree 7 computes exp(r). Its truncation error, r^8 / 8!, is at most
// 5.2e-9, so the last roundings dominate. A minimax polynomial would save one of eight terms, and
// 0.2 % of a kernel call.
template <class D>
HWY_INLINE hn::Vec<D> ExpNonPositive([[maybe_unused]] D d, hn::Vec<D> x) {
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  const hn::RebindToSigned<D> di;
  const auto flush = hn::Set(d, kExpFlush);
  const auto clamped = hn::Max(x, flush);
  const auto n = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  const auto n_float = hn::ConvertTo(d, n);
  auto r = hn::NegMulAdd(n_float, hn::Set(d, kLn2High), clamped);
  r = hn::NegMulAdd(n_float, hn::Set(d, kLn2Low), r);
  auto y = hn::Set(d, 1.0f / 5040);
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 720));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 120));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 24));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 6));
  y = hn::MulAdd(y, r, hn::Set(d, 0.5f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  const auto result = hn::IfThenZeroElse(hn::Lt(x, flush), hn::Mul(y, power));
  // Targets differ in the maximum of NaN and a number.
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// Loads Lanes(d) bf16 values from any address, as u32 lanes.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadU16Lanes([[maybe_unused]] D d, const void* from) {
  const hn::RebindToUnsigned<D> du;
#if HWY_TARGET == HWY_SCALAR
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return hn::Set(du, uint32_t{bits});
#else
  const hn::Rebind<uint16_t, D> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  return hn::PromoteTo(du, hn::BitCast(d16, hn::LoadU(d8, static_cast<const uint8_t*>(from))));
#endif
}

// Loads Lanes(d) u32 values from any address.
template <class DU>
HWY_INLINE hn::Vec<DU> LoadU32Lanes([[maybe_unused]] DU du, const void* from) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return hn::Set(du, bits);
#else
  const hn::Repartition<uint8_t, DU> d8;
  return hn::BitCast(du, hn::LoadU(d8, static_cast<const uint8_t*>(from)));
#endif
}

template <class DU>
HWY_INLINE void StoreU32Lanes([[maybe_unused]] DU du, hn::Vec<DU> lanes, void* to) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t bits = hn::GetLane(lanes);
  std::memcpy(to, &bits, sizeof(bits));
#else
  const hn::Repartition<uint8_t, DU> d8;
  hn::StoreU(hn::BitCast(d8, lanes), d8, static_cast<uint8_t*>(to));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> LoadBf16([[maybe_unused]] D d, const void* from) {
  return hn::BitCast(d, hn::ShiftLeft<16>(LoadU16Lanes(d, from)));
}

// Converts f32 to bf16 in the low half of each u32 lane: to nearest, ties to even; NaN is made
// quiet.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundToBf16([[maybe_unused]] D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
}

// Stores the low halves of u32 lanes to any address.
template <class D>
HWY_INLINE void StoreU16Lanes([[maybe_unused]] D d, hn::Vec<hn::RebindToUnsigned<D>> lanes,
                              void* to) {
#if HWY_TARGET == HWY_SCALAR
  const uint16_t bits = static_cast<uint16_t>(hn::GetLane(lanes));
  std::memcpy(to, &bits, sizeof(bits));
#else
  const hn::Rebind<uint16_t, D> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  // Every lane is < 2^16, but DemoteTo saturates to the signed range. Sign-extend first, so that
  // the pack keeps all 16 bits.
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int16_t, D> d16s;
  const auto extended = hn::ShiftRight<16>(hn::BitCast(di, hn::ShiftLeft<16>(lanes)));
  const auto packed = hn::DemoteTo(d16s, extended);
  hn::StoreU(hn::BitCast(d8, packed), d8, static_cast<uint8_t*>(to));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
