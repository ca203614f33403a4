// The kernels of dense layers, which dense.cc chooses among.

#pragma once

#include <cstddef>
#include <span>

#include "attention/dense.h"

namespace ckv::matrix {

// Thread-safe: kernels have no state.
class DenseKernel {
 public:
  virtual ~DenseKernel() = default;
  // As RunDense (attention/dense.h).
  virtual void Multiply(const DenseCall& call, std::span<std::byte> scratch) const = 0;
};

const DenseKernel& AmxDenseKernel();    // needs AmxUnit
const DenseKernel& ModelDenseKernel();  // needs AVX-512
const DenseKernel& PortableModelDenseKernel();

}  // namespace ckv::matrix
