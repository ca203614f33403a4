// Fabrics by their kinds, for tests with a fabric as their parameter.

#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv::test {

// Of kShm or kTcp; loopback for any other kind.
inline std::unique_ptr<Fabric> MakeFabric(FabricKind kind, Clock* clock = Clock::Real()) {
  switch (kind) {
    case FabricKind::kShm:
      return NewShmFabric(clock);
    case FabricKind::kTcp:
      return NewTcpFabric(clock);
    default:
      return NewLoopbackFabric(clock);
  }
}

// The name of a case.
inline std::string FabricOf(const ::testing::TestParamInfo<FabricKind>& fabric) {
  return std::string(FabricName(fabric.param));
}

}  // namespace ckv::test
