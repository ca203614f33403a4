// The precision of a call. Each KV split of a call has a `Precision`, which requests carry to
// holders.

#pragma once

#include <cstdint>
#include <string_view>

#include "attention/partial.h"

namespace ckv {

// A vector target (AVX3, AVX2 and below) multiplies f32 and computes every precision as kExact. AMX
// multiplies only bf16, so it splits each softmax weight into a sum of bf16 terms: three, two or
// one. More terms cost more products. AVX512_BF16 multiplies f32 weights in kExact and kWire, which
// cost the same there, and uses one term in kFast. The queries and the rows are bf16 already, so
// logits are the same at every precision.
//
// With weights p_j = exp(logit_j - m) and P = max_j |v_j| over the attended rows, the omitted terms
// change |o| by at most
//   kExact   Three terms of 8 bits each represent a whole f32, so the bound in mla_partial.h holds.
//            Terms and products below 2^-126 become 0, which changes |o| by 2^-124 x max(1, P) per
//            key.
//   kWire    Two terms, rounded: the relative error of a weight is 2^-17, and l sums the rounded
//            weights. So o is exact for the rounded weights, and |o| errs by another 2^-17 x P.
//            Rounding a bf16 partial loses up to 2^-8 x |o|, 512 times as much.
//   kFast    One term: the relative error of a weight is 2^-8, so |o| errs by another 2^-8 x P.
//            GPU attention kernels do the same. Used only on a caller's request.
// Errors of different rows have different signs: over 2048 rows of equal weight, the sum errs by a
// fortieth of these bounds.
enum class Precision : uint8_t {
  kDefault = 0,  // by the partial's dtype: f32 is kExact, bf16 is kWire
  kExact = 1,
  kWire = 2,
  kFast = 3,
};
inline constexpr uint8_t kPrecisionMax = 3;

// Resolves kDefault by the partial's dtype; returns other values unchanged.
constexpr Precision PrecisionOf(Precision requested, PartialDtype dtype) {
  if (requested != Precision::kDefault) return requested;
  return dtype == PartialDtype::kF32 ? Precision::kExact : Precision::kWire;
}

// Returns "default", "exact", "wire" or "fast".
constexpr std::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kExact:
      return "exact";
    case Precision::kWire:
      return "wire";
    case Precision::kFast:
      return "fast";
    default:
      return "default";
  }
}

}  // namespace ckv
