// Dense layers of the reference engine: y = x W, with the same bits whatever else is in the call.
//
// A BLAS would not do: OpenBLAS and oneDNN choose their blocking, and so the order of a sum, by the
// shape of the call. A token's bits would then depend on how many tokens were prefilled with it.
// Here every output is one chain of multiply-adds over k = 0, 1, 2, ... SIMD lanes and register
// tiles only run over outputs.

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
  // Copies `weights`, f32 [input, output], row-major.
  Linear(uint32_t input, uint32_t output, std::span<const float> weights);

  uint32_t input() const { return input_; }
  uint32_t output() const { return output_; }
  uint32_t panel_count() const { return panel_count_; }
  // Returns f32 [input][kPanelColumns]; columns past `output` are zero.
  const float* panel(uint32_t index) const {
    return panels_.data() + size_t{index} * input_ * kPanelColumns;
  }

 private:
  uint32_t input_ = 0;
  uint32_t output_ = 0;
  uint32_t panel_count_ = 0;
  std::vector<float> panels_;  // [panel_count][input][kPanelColumns]
};

// One product of a call. `x` and `y` are [rows] rows with strides in values; `y` aliases nothing.
struct LinearJob {
  const Linear* linear = nullptr;
  const float* x = nullptr;
  size_t x_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
};

// Computes every job over `rows` rows, with panels spread over the pool's threads. On a given SIMD
// target, a row's result depends on that row and the weights alone, bit for bit. Targets with a
// fused multiply-add agree with each other.
// Cost: 2 x rows x input x output flop per job; weights are read once per 6 rows.
void RunLinears(std::span<const LinearJob> jobs, uint32_t rows, WorkerPool& pool) noexcept;

}  // namespace ckv
