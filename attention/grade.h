// How exactly a call is computed. Each piece of a call has its grade; requests carry it to holders.

#pragma once

#include <cstdint>
#include <string_view>

#include "attention/partial.h"

namespace ckv {

// A vector target (AVX3, AVX2 and below) multiplies f32. It computes every grade as kExact. AMX
// multiplies bf16 alone, so it writes each softmax weight as a sum of bf16 terms: three, two or
// one; more terms cost more products. AVX512_BF16 multiplies f32 weights in kExact and kWire, which
// cost the same there, and has one term in kFast. The queries and the rows are bf16 already, so
// logits are the same in all grades.
//
// With weights p_j = exp(logit_j - m) and P = max_j |v_j| over the attended rows, what the terms
// leave out moves |o| by at most
//   kExact   three terms, of 8 bits each, are all of an f32. So the bound in mla_partial.h
//            holds.
//            Terms and products below 2^-126 become 0: that moves |o| by 2^-124 x max(1, P) a key.
//   kWire    two terms, rounded: a weight errs by 2^-17 of itself, and l sums the rounded weights.
//            So o is the exact answer to weights that err by that: |o| errs by 2^-17 x P more. A
//            bf16 partial loses up to 2^-8 x |o| when it is rounded, 512 times that.
//   kFast    one term: a weight errs by 2^-8, so |o| by 2^-8 x P more. Attention kernels of GPUs do
//            this. Only where a caller asks for it.
// Errors of different rows have different signs: over 2048 rows of equal weight the sum errs by a
// fortieth of these bounds.
enum class Grade : uint8_t {
  kDefault = 0,  // by the partial's dtype: f32 is kExact, bf16 is kWire
  kExact = 1,
  kWire = 2,
  kFast = 3,
};
inline constexpr uint8_t kGradeMax = 3;

// Returns what kDefault stands for; other grades as they are.
constexpr Grade GradeOf(Grade asked, PartialDtype dtype) {
  if (asked != Grade::kDefault) return asked;
  return dtype == PartialDtype::kF32 ? Grade::kExact : Grade::kWire;
}

// Returns "default", "exact", "wire" or "fast".
constexpr std::string_view GradeName(Grade grade) {
  switch (grade) {
    case Grade::kExact:
      return "exact";
    case Grade::kWire:
      return "wire";
    case Grade::kFast:
      return "fast";
    default:
      return "default";
  }
}

}  // namespace ckv
