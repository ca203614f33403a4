// Goal: a call, routed or over cached rows, allocates nothing once its context has made one like
// it.
// Method: every operator new of the calling thread is counted, over calls of the same shape to
// three holders, with slots so small that a call is cut into many frames.

#include <memory>
#include <random>
#include <vector>

#include "client/cost/profile_file.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/allocation_count.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

class RequesterAllocation : public testing::Test {
 protected:
  void SetUp() override {
    if (!kCountsAllocations)
      GTEST_SKIP()
          << "the sanitizer owns the allocator; to run it: tests/run.sh, which has no sanitizer";
    fabric_ = NewShmFabric(Clock::Real());
    fleet_ = std::make_unique<TestFleet>(std::vector<Fabric*>{fabric_.get()});
    for (size_t i = 0; i < 3; ++i) fleet_->StartHolder(i);
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    options.lane_shape = SmallShape();
    // So that replies also train the cost model.
    Profile profile;
    profile.subject = SubjectOf(TestGeometry(), HostIdentity(), {}, /*quick=*/true);
    for (const char* holder : {"h0", "h1", "h2"})
      profile.lanes.push_back({holder, "shm", {1, 1e9, 1e9}, {1, 0, 1, {{{1, 0.1}}}}});
    options.profile = std::make_shared<const Profile>(profile);
    auto requester = Requester::Create(options, fleet_.get(), fleet_.get());
    ASSERT_TRUE(requester.ok()) << requester.status();
    requester_ = *std::move(requester);
    corpus_ = MakeTestCorpus(TestGeometry(), {5, 64, 130, 1, 33, 7}, 1);
    fleet_->Load("c", corpus_, {0, 1, 2, 0, 1, 2});
  }

  // The number of allocations of one call.
  uint64_t CountOf(const AttendCall& call, Answer& answer) {
    const uint64_t before = allocation_count;
    const absl::Status status = requester_->Attend(call, answer.View(), nullptr);
    const uint64_t count = allocation_count - before;
    EXPECT_TRUE(status.ok()) << status;
    return count;
  }

  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<TestFleet> fleet_;
  std::unique_ptr<Requester> requester_;
  test::TestCorpus corpus_;
};

TEST_F(RequesterAllocation, NoneOnceWarm) {
  const auto published = requester_->Resolve("c", "", Soon());
  ASSERT_TRUE(published.ok());
  std::mt19937 rng(1);
  constexpr uint32_t kRows = 40;
  const auto q = RandomBf16(size_t{kRows} * corpus_.geometry.d_qk, rng);
  Answer answer(kRows, corpus_.geometry.d_v);
  AttendCall call;
  call.corpus = *published;
  call.q = {q.data(), kRows, corpus_.geometry.d_qk};
  for (const PartialDtype wire : {PartialDtype::kF32, PartialDtype::kBf16}) {
    SCOPED_TRACE(testing::Message() << "wire " << int(wire));
    call.wire = wire;
    for (int round = 0; round < 20; ++round) {
      call.layer = static_cast<uint32_t>(round) % corpus_.geometry.layers;
      call.deadline = Soon();
      const uint64_t count = CountOf(call, answer);
      if (round >= 4) {
        EXPECT_EQ(count, 0u) << "round " << round;
      }
    }
  }
}

// The same for contexts of policy auto, which counts and decides meanwhile, and of policy cache.
TEST_F(RequesterAllocation, NoneOfContextsOnceWarm) {
  const auto published = requester_->Resolve("c", "", Soon());
  ASSERT_TRUE(published.ok());
  std::mt19937 rng(1);
  constexpr uint32_t kRows = 40;
  const auto q = RandomBf16(size_t{kRows} * corpus_.geometry.d_qk, rng);
  Answer answer(kRows, corpus_.geometry.d_v);
  const ContextPart part = {*published, {}};
  for (const ContextPolicy policy : {ContextPolicy::kAuto, ContextPolicy::kCache}) {
    SCOPED_TRACE(testing::Message() << "policy " << int(policy));
    const auto context =
        requester_->Open({.parts = {&part, 1}, .expect = {}, .policy = policy}, Soon());
    ASSERT_TRUE(context.ok()) << context.status();
    const Segment segment = {.row_count = kRows, .context = &*context};
    LayerCall call;
    call.q = {q.data(), kRows, corpus_.geometry.d_qk};
    call.segments = {&segment, 1};
    uint64_t cached_pairs = 0;
    int alike = 0;  // calls since rows were cached
    for (int round = 0; round < 60; ++round) {
      call.layer = static_cast<uint32_t>(round) % corpus_.geometry.layers;
      call.deadline = Soon();
      AttendReport report;
      const uint64_t before = allocation_count;
      ASSERT_TRUE(requester_->Attend(call, answer.View(), &report).ok());
      const uint64_t count = allocation_count - before;
      alike = report.cached_pairs == cached_pairs ? alike + 1 : 0;
      cached_pairs = report.cached_pairs;
      if (alike >= 4) {
        EXPECT_EQ(count, 0u) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace ckv
