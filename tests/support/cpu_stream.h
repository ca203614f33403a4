// A stream of this processor's backend, for tests that compute on one thread.

#pragma once

#include <memory>

#include "attention/backend.h"

namespace ckv::test {

// Belongs to the test's own thread.
inline ComputeStream& CpuStream() {
  static const std::unique_ptr<ComputeStream> stream = *Backend::Cpu()->NewStream(1);
  return *stream;
}

}  // namespace ckv::test
