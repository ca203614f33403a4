// A verbs fabric as the guest's device allows one, for tests that run there.

#pragma once

#include <sched.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "transport/verbs/verbs_fabric.h"

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

// Until what is in use is so. What a lane had is given back some time after it was destroyed.
inline void AwaitUse(const VerbsFabric& fabric,
                     const std::function<bool(const VerbsUse&)>& condition) {
  // Generous: reached by a hang only.
  const Instant deadline = Clock::Real()->Now() + std::chrono::seconds(20);
  while (!condition(fabric.use()) && Clock::Real()->Now() < deadline) sched_yield();
  const VerbsUse use = fabric.use();
  EXPECT_TRUE(condition(use)) << use.queue_pairs << " queue pairs, " << use.receives
                              << " receives, " << use.regions << " regions";
}
inline void AwaitUse(const VerbsFabric& fabric, const VerbsUse& expected) {
  AwaitUse(fabric, [&](const VerbsUse& use) { return use == expected; });
}

}  // namespace ckv::test
