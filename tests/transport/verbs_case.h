// A verbs fabric as the guest's device allows one, for tests that run there.

#pragma once

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "transport/verbs_fabric.h"

namespace ckv::test {

// Emulation stalls a thread for tens of milliseconds: packets are given up after 1.9 s instead of
// 0.5, and destroyed lanes wait longer for what they had sent.
inline VerbsOptions GuestVerbsOptions() {
  VerbsOptions options;
  options.timeout = 16;
  options.linger_ms_max = 2000;
  options.silence_ms_max = 15'000;
  return options;
}

inline std::unique_ptr<VerbsFabric> MakeVerbs(const VerbsOptions& options, Clock* clock) {
  auto fabric = NewVerbsFabric(options, clock);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return fabric.ok() ? *std::move(fabric) : nullptr;
}

inline std::unique_ptr<Fabric> MakeGuestVerbs(Clock* clock) {
  return MakeVerbs(GuestVerbsOptions(), clock);
}

}  // namespace ckv::test
