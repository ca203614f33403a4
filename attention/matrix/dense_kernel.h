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
  // As RunDense (attention/dense.h), but does not check that the processor has the unit. `scratch`
  // is that of a worker: WorkerPool::kScratchBytes, 64-byte aligned.
  virtual void Multiply(const DenseCall& call, std::span<std::byte> scratch) const = 0;
};

// AMX needs the tile unit (AmxUnit, attention/matrix/matrix_kernel.h); without it a call executes
// an illegal instruction. The models compute the bits of AMX in software, for tests: one with
// AVX-512, one on every processor.
const DenseKernel& AmxDenseKernel();
const DenseKernel& ModelDenseKernel();
const DenseKernel& PortableModelDenseKernel();

}  // namespace ckv::matrix
