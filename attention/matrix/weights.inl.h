// Turns logits into weights: exp, and the split of a weight into bf16 terms.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after
// tile_products.inl.h, matrix_dot.cc after span_rows.inl.h.

#pragma once

namespace ckv::matrix {

// exp is exactly 0 below this argument, as in the vector targets (simd_math.inl.h).
inline constexpr float kExpFlushAt = -87.0f;

// Computes exp(scale x) for differences x <= 0 of raw logits. -inf gives 0, and NaN stays NaN.
template <class L>
struct WeightExp {
  using F = typename L::F;
  using I = typename L::I;

  explicit WeightExp(float scale) {
    const double factor = static_cast<double>(scale) * 1.4426950408889634;  // log2(e)
    const auto high = static_cast<float>(factor);
    log2_high = L::Set(high);
    log2_low = L::Set(static_cast<float>(factor - static_cast<double>(high)));
    lowest = L::Set(kExpFlushAt / scale);
  }

  // x scale log2(e) = n + f with |f| <= 1/2; a minimax polynomial computes 2^f. With kTerms = 3 its
  // degree is 6 and its error 5e-9; the low part of the factor keeps f exact for small weights.
  // Fewer terms round the weight: two to 2^-17, one to 2^-8. Compared with that, degree 6 suffices
  // for two terms without the low part. Degree 4, with an error of 7e-6, suffices for one.
  template <int kTerms>
  HWY_INLINE F Of(F x) const {
    const F magic = L::Set(12582912.0f);  // 1.5 x 2^23: the sum's low bits are n
    const F shifted = L::MulAdd(x, log2_high, magic);
    const F n = L::Sub(shifted, magic);
    F f = L::MulSub(x, log2_high, n);
    if constexpr (kTerms == 3) f = L::MulAdd(x, log2_low, f);
    F p;
    if constexpr (kTerms == 1) {
      p = L::MulAdd(L::Set(0.00965671029f), f, L::Set(0.0558382829f));
      p = L::MulAdd(p, f, L::Set(0.240225301f));
      p = L::MulAdd(p, f, L::Set(0.693136734f));
    } else {
      p = L::MulAdd(L::Set(0.000154531629f), f, L::Set(0.00133908634f));
      p = L::MulAdd(p, f, L::Set(0.00961808256f));
      p = L::MulAdd(p, f, L::Set(0.0555035711f));
      p = L::MulAdd(p, f, L::Set(0.240226508f));
      p = L::MulAdd(p, f, L::Set(0.693147188f));
    }
    p = L::MulAdd(p, f, L::Set(1.0f));
    // Multiplies by 2^n. The low 9 bits of a NaN from bf16 values are zero, so it remains a NaN.
    const I power = L::template ShiftLeft<23>(L::AsI(shifted));
    return L::OrZero(L::NotLess(x, lowest), L::AsF(L::AddI(L::AsI(p), power)));
  }

  F log2_high;
  F log2_low;
  F lowest;
};

// Splits a weight into kTerms bf16 terms, in the upper halves of `terms`, largest first. Returns
// the sum of the terms, which is the weight's contribution to l.
template <class L, int kTerms>
HWY_INLINE typename L::F SplitWeight(typename L::F weight, typename L::I* terms) {
  using F = typename L::F;
  const auto upper = L::SetI(0xffff0000u);
  if constexpr (kTerms == 3) {  // truncated: 8 + 8 + 8 bits, the whole f32
    terms[0] = L::AndI(L::AsI(weight), upper);
    const F rest = L::Sub(weight, L::AsF(terms[0]));
    terms[1] = L::AndI(L::AsI(rest), upper);
    terms[2] = L::AsI(L::Sub(rest, L::AsF(terms[1])));
    return weight;
  }
  const auto half = L::SetI(0x8000u);
  terms[0] = L::AndI(L::AddI(L::AsI(weight), half), upper);
  if constexpr (kTerms == 1) return L::AsF(terms[0]);
  const F rest = L::Sub(weight, L::AsF(terms[0]));
  terms[1] = L::AndI(L::AddI(L::AsI(rest), half), upper);
  return L::Add(L::AsF(terms[0]), L::AsF(terms[1]));
}

}  // namespace ckv::matrix
