// Runs a test body on every kernel target of this processor.

#pragma once

#include <string_view>

#include "attention/mla_partial.h"
#include "gtest/gtest.h"

namespace ckv::test {

template <typename Body>
void ForEachTarget(Body body) {
  for (const std::string_view target : KernelTargets()) {
    SCOPED_TRACE(testing::Message() << "target " << target);
    ASSERT_TRUE(ForceKernelTarget(target).ok());
    body();
  }
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

}  // namespace ckv::test
