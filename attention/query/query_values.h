// The range of query values over which no logit overflows.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "attention/partial.h"

namespace ckv {

// Kernels compute logits in f32. A logit that overflows to infinity or NaN is seen in the answer.
// One that overflows to -inf is not: its key gets weight 0, and may be the heaviest. So queries
// whose products can overflow are refused.
//
//   |q| <= 2^64, |k| <= 2^48, d_qk <= 2^11: every sum of products is below 2^123, and f32 ends at
//   2^128. Rotation by a position adds at most a factor of sqrt 2.
//
// A softmax scale above 2^5 could overflow it; DeepSeek's is 0.1. Rows beyond 2^48 are told of when
// they are loaded, as NaN is (ckvctl corpus load). Queries of models are below 2^10.
inline constexpr float kQueryMagnitudeMax = 0x1p64f;
inline constexpr float kRowMagnitudeMax = 0x1p48f;

// Checks the first `width` values of each row. `slack` multiplies the limit: a rotation by a peer
// may have grown values. Passes queries in memory of a device, and those that a stream still
// writes: holders look at them in the frame. Cost: reads 18 KB for 16 rows of 576.
//   InvalidArgument     a value is NaN, infinite or above the limit. Names the first one's row.
absl::Status CheckQueryValues(const QueryView& q, uint32_t width, float slack = 1);

}  // namespace ckv
