// The limits on query and row values within which no logit overflows, and the check of queries.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "attention/partial.h"

namespace ckv {

// Kernels compute logits in f32. A logit that overflows to infinity or NaN is visible in the
// answer. An overflow to -inf is not: its key gets weight 0, and may be the heaviest key. So
// queries whose products can overflow are refused.
//
//   |q| <= 2^64, |k| <= 2^48, d_qk <= 2^11: every sum of products is below 2^123, and f32 ends at
//   2^128. Rotation by a position adds at most a factor of sqrt 2.
//
// A softmax scale above 2^5 could overflow; DeepSeek's is 0.1. `ckvctl corpus load` reports rows
// with NaN or with values beyond 2^48. Queries of real models are below 2^10.
inline constexpr float kQueryMagnitudeMax = 0x1p64f;
inline constexpr float kRowMagnitudeMax = 0x1p48f;

// Checks the first `width` values of each row. `slack` multiplies the limit: a rotation by a peer
// may have increased values. Returns OK without a check for queries in device memory, and for
// queries that a stream still writes; holders check those in the frame. Cost: reads 18 KB for 16
// rows of 576.
//   InvalidArgument     a value is NaN, infinite or above the limit. Names the first row that has
//                       one.
absl::Status CheckQueryValues(const QueryView& q, uint32_t width, float slack = 1);

}  // namespace ckv
