// Fabrics by their kinds, for tests with a fabric as their parameter.

#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv::test {

// Makes a fabric of shm or tcp. For any other kind it makes loopback.
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
