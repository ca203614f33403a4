// Dense layers on a unit that multiplies bf16: y = x W, with weights in bf16 and activations in
// f32. The reference engine uses it; ckv itself serves attention only.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckv {

// Rows of x at most in one call.
inline constexpr uint32_t kDenseRowsMax = 32;
// Inputs at most, by what fits a worker's scratch: 3 terms x 32 rows x 2 bytes.
inline constexpr uint32_t kDenseInputMax = 1u << 14;

// Packs weights, bf16 [input][output], row-major, as RunDense takes them: words
//   [tile of 16 outputs][step of 32 inputs][16 pairs of inputs][16 outputs]
// Tiles come in pairs. Inputs and outputs beyond the matrix are zeros.
std::vector<uint32_t> PackDenseWeights(uint32_t input, uint32_t output,
                                       std::span<const uint16_t> weights);

struct DenseCall {
  const float* x = nullptr;  // f32 [rows] rows of `input` values, x_stride values apart
  size_t x_stride = 0;
  uint32_t rows = 0;                  // at most kDenseRowsMax
  const uint32_t* weights = nullptr;  // a pair of tiles of PackDenseWeights, where outputs begin
  uint32_t input = 0;                 // at most kDenseInputMax
  uint32_t output = 0;                // outputs to compute
  float* y = nullptr;                 // f32 [rows] rows, y_stride values apart; aliases nothing
  size_t y_stride = 0;
};

// Returns whether the kernel target in use has a unit for dense layers: AMX and its models do.
// VDPBF16PS would take three terms at half of the cost of an f32 multiply-add each, and gain
// nothing.
bool HasDenseUnit();

// Computes y = x W. An activation is the sum of three bf16 terms, which hold all of its bits. So
// products are exact, and sums are f32, in an order that depends on nothing but `input`. Terms and
// products below 2^-126 count as 0. An infinite activation or weight gives NaN. Rows do not depend
// on each other, and outputs neither. `scratch` is a worker's (WorkerPool). Thread-safe. The kernel
// target must have the unit (CKV_CHECK).
// Cost: 6 x 32 x input x output flop of the unit, even for one row.
void RunDense(const DenseCall& call, std::span<std::byte> scratch) noexcept;

}  // namespace ckv
