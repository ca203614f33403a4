// The kernels of dense layers, which dense.cc chooses among.

#pragma once

#include <cstddef>
#include <span>

#include "attention/dense.h"

namespace ckv::matrix {

// Thread-safe: kernels have no state. Each call needs its own scratch memory.
class DenseKernel {
 public:
  virtual ~DenseKernel() = default;
  // As RunDense (attention/dense.h).
  virtual void Multiply(const DenseCall& call, std::span<std::byte> scratch) const = 0;
};

// AMX needs the tile unit (AmxUnit, attention/matrix/matrix_kernel.h); without it a call is an
// illegal instruction. The models compute its bits in software, for tests: one with AVX-512, one on
// every processor.
const DenseKernel& AmxDenseKernel();
const DenseKernel& ModelDenseKernel();
const DenseKernel& PortableModelDenseKernel();

}  // namespace ckv::matrix
