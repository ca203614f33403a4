// What the conformance suite runs over: loopback, shm, tcp, and the fault fabric without faults on
// top of each. Built with CKV_TEST_VERBS, over verbs instead: that needs a device, see tests/guest.

#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/fault_fabric.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"

#ifdef CKV_TEST_VERBS
#include "tests/transport/verbs/verbs_case.h"
#endif

namespace ckv::test {

inline constexpr LaneShape kSmallShape = {4, 4096, 8192};

struct FabricCase {
  const char* name;
  FabricKind kind;
  std::unique_ptr<Fabric> (*make)(Clock*);
  bool fault;
};

class FabricTest : public testing::TestWithParam<FabricCase> {
 protected:
  FabricTest() {
    inner_ = GetParam().make(&clock_);
    if (GetParam().fault) wrapped_ = NewFaultFabric(inner_.get(), &clock_, FaultPlan{});
    auto listener = fabric().Listen({});
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  Fabric& fabric() { return wrapped_ ? *wrapped_ : *inner_; }
  LanePair Make(const LaneShape& shape = kSmallShape) {
    return MakeLane(fabric(), *listener_, shape, clock_.Now() + kPatience);
  }

  // Real time plus what a test adds: expiry is tested without waiting for it.
  class ShiftedClock final : public Clock {
   public:
    Instant Now() const noexcept override { return Clock::Real()->Now() + Duration(shift_ns_); }
    bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) override
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      return Clock::Real()->Await(mu, condition, deadline - Duration(shift_ns_));
    }
    void Advance(Duration by) { shift_ns_ += by.count(); }

   private:
    std::atomic<int64_t> shift_ns_{0};
  };

  ShiftedClock clock_;
  std::unique_ptr<Fabric> inner_;
  std::unique_ptr<Fabric> wrapped_;
  std::unique_ptr<Listener> listener_;
};

inline auto AllFabrics() {
#ifdef CKV_TEST_VERBS
  return testing::Values(FabricCase{"verbs", FabricKind::kVerbs, &MakeGuestVerbs, false},
                         FabricCase{"fault_verbs", FabricKind::kVerbs, &MakeGuestVerbs, true});
#else
  return testing::Values(
      FabricCase{"loopback", FabricKind::kLoopback, &NewLoopbackFabric, false},
      FabricCase{"shm", FabricKind::kShm, &NewShmFabric, false},
      FabricCase{"tcp", FabricKind::kTcp, &NewTcpFabric, false},
      FabricCase{"fault_loopback", FabricKind::kLoopback, &NewLoopbackFabric, true},
      FabricCase{"fault_shm", FabricKind::kShm, &NewShmFabric, true},
      FabricCase{"fault_tcp", FabricKind::kTcp, &NewTcpFabric, true});
#endif
}

inline std::string CaseName(const testing::TestParamInfo<FabricCase>& test) {
  return test.param.name;
}

}  // namespace ckv::test
