// Dense layers on a unit that multiplies bf16: y = x W, with bf16 weights and f32 activations. Only
// the reference engine uses them; ckv itself serves attention only.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckv {

// The most rows of x in one call.
inline constexpr uint32_t kDenseRowsMax = 32;
// The most inputs: each takes 3 terms x 32 rows x 2 bytes of a worker's scratch.
inline constexpr uint32_t kDenseInputMax = 1u << 14;

// Packs bf16 weights [input][output], row-major, into the words that RunDense reads:
//   [tile of 16 outputs][step of 32 inputs][16 pairs of inputs][16 outputs]
// The number of tiles is even. Inputs and outputs beyond the matrix are zeros.
std::vector<uint32_t> PackDenseWeights(uint32_t input, uint32_t output,
                                       std::span<const uint16_t> weights);

struct DenseCall {
  const float* x = nullptr;  // f32 [rows] rows of `input` values, x_stride values apart
  size_t x_stride = 0;
  uint32_t rows = 0;                  // at most kDenseRowsMax
  const uint32_t* weights = nullptr;  // the pair of packed tiles at which the outputs begin
  uint32_t input = 0;                 // at most kDenseInputMax
  uint32_t output = 0;                // outputs to compute
  float* y = nullptr;                 // f32 [rows] rows, y_stride values apart; no aliasing
  size_t y_stride = 0;
};

// Returns whether the kernel target in use has a unit for dense layers: AMX and its models do.
// VDPBF16PS would need three terms, each at half the cost of an f32 multiply-add: no gain.
bool HasDenseUnit();

// Computes y = x W. An activation is split into three bf16 terms, which contain all of its bits. So
// products are exact, and sums are f32, in an order that depends only on `input`. Terms and
// products below 2^-126 count as 0. An infinite activation gives NaN; an infinite weight gives NaN
// or an infinity. Every row and every output is independent of the others. `scratch` is a worker's
// (WorkerPool). Thread-safe. The kernel target must have the unit (CKV_CHECK).
// Cost: 6 x 32 x input x output flop of the unit, even for one row.
void RunDense(const DenseCall& call, std::span<std::byte> scratch) noexcept;

}  // namespace ckv
