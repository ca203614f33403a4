#include "attention/dense.h"

#include "attention/block_kernel.h"
#include "attention/matrix/dense_kernel.h"
#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The kernel of the target in use, or null.
const matrix::DenseKernel* InUse() {
  const std::string_view target = KernelTarget();
#if defined(__x86_64__)
  if (target == "AMX") return &matrix::AmxDenseKernel();
  static const bool has_avx512 = matrix::VectorRate(1) > 0;
  if (target == "AMX_MODEL" && has_avx512) return &matrix::ModelDenseKernel();
#endif
  return target == "AMX_MODEL" ? &matrix::PortableModelDenseKernel() : nullptr;
}

}  // namespace

std::vector<uint32_t> PackDenseWeights(uint32_t input, uint32_t output,
                                       std::span<const uint16_t> weights) {
  CKV_CHECK(input > 0 && input <= kDenseInputMax && weights.size() == size_t{input} * output);
  const uint32_t steps = RoundUp(input, 32) / 32;
  std::vector<uint32_t> packed(size_t{RoundUp(output, 32)} / 16 * steps * 256);
  for (uint32_t k = 0; k < input; ++k) {
    const uint32_t shift = k % 2 * 16;
    for (uint32_t n = 0; n < output; ++n) {
      const size_t block = size_t{n / 16} * steps + k / 32;
      packed[block * 256 + k % 32 / 2 * 16 + n % 16] |= uint32_t{weights[size_t{k} * output + n]}
                                                        << shift;
    }
  }
  return packed;
}

bool HasDenseUnit() { return InUse() != nullptr; }

void RunDense(const DenseCall& call, std::span<std::byte> scratch) noexcept {
  const matrix::DenseKernel* const kernel = InUse();
  CKV_CHECK(kernel != nullptr && call.rows <= kDenseRowsMax && call.input <= kDenseInputMax);
  kernel->Multiply(call, scratch);
}

}  // namespace ckv
