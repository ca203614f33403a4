// Dense layers of the reference engine: y = x W, with the same bits whatever else is in the call.
//
// A BLAS would not do: OpenBLAS and oneDNN choose their blocking, and so the order of a sum, by the
// shape of the call. A token's bits would then depend on how many tokens were prefilled with it.
// Here every output is one chain of multiply-adds over k = 0, 1, 2, ... SIMD lanes and register
// tiles only run over outputs. On a kernel target with a tile unit, the unit multiplies instead
// (attention/dense.h), in an order of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/worker_pool.h"

namespace ckv {

// One weight matrix, packed for the kernel. Immutable, so any thread may use it.
class Linear {
 public:
  // Columns of a panel: 2 vectors of AVX-512, 4 of AVX2, 8 of SSE4.
  static constexpr uint32_t kPanelColumns = 32;

  Linear() = default;
  // Copies `weights`, f32 [input, output], row-major. A unit that multiplies bf16 takes them if all
  // of them are bf16 values.
  Linear(uint32_t input, uint32_t output, std::span<const float> weights);

  uint32_t input() const { return input_; }
  uint32_t output() const { return output_; }
  uint32_t panel_count() const { return panel_count_; }
  // Returns f32 [input][kPanelColumns]; columns past `output` are zero.
  const float* panel(uint32_t index) const {
    return panels_.data() + size_t{index} * input_ * kPanelColumns;
  }
  // Returns the weights as RunDense takes them (attention/dense.h); empty if some are no bf16
  // values.
  std::span<const uint32_t> packed() const { return packed_; }

 private:
  uint32_t input_ = 0;
  uint32_t output_ = 0;
  uint32_t panel_count_ = 0;
  std::vector<float> panels_;  // [panel_count][input][kPanelColumns]
  std::vector<uint32_t> packed_;
};

// One product of a call. `x` and `y` are [rows] rows with strides in values; `y` aliases nothing.
struct LinearJob {
  const Linear* linear = nullptr;
  const float* x = nullptr;
  size_t x_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
};

// Computes every job over `rows` rows, spread over the pool's threads. On a given kernel target, a
// row's result depends on that row and the weights alone, bit for bit. Vector targets with a fused
// multiply-add agree with each other, and the tile unit with its models.
// Cost: 2 x rows x input x output flop per job; weights are read once per 6 rows. A tile unit does
// 6 x 32 x input x output flop for each 32 rows or fewer, and reads weights once.
void RunLinears(std::span<const LinearJob> jobs, uint32_t rows, WorkerPool& pool) noexcept;

}  // namespace ckv
