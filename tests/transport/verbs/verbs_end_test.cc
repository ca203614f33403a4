// Goal: the end of a lane, and the pinning of the store, block no other thread; nothing is sent
// from the store after the lane's end; and the fabric's end leaves nothing. Method: in the guest,
// with the fabric's side thread held up, so that whatever must not wait for it is seen not to.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/verbs/verbs_fixture.h"
#include "tests/transport/verbs/verbs_held_job.h"

namespace ckv {
namespace {

using test::AwaitDown;
using test::AwaitRequest;
using test::CheckGather;
using test::LanePair;
using test::MakeLane;
using test::RawPeer;
using test::Store;
using test::VerbsTest;

// While the thread that tears lanes down and registers the store is held up, no other thread is.
TEST_F(VerbsTest, DestroyedLanesDelayNoOther) {
  auto side = std::make_shared<VerbsSideThread>();
  test::HeldJob held;
  const VerbsSourceId source = side->Open();
  Start(test::GuestVerbsOptions(), Store(1 << 20), side);
  LanePair gone = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  LanePair stays = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  ASSERT_TRUE(gone.request && stays.serve);
  HoldUp(*side, source, held);
  const VerbsUse before = fabric_->use();
  gone.serve.reset();
  // The other end fails at once nevertheless.
  EXPECT_EQ(AwaitDown(*gone.request).code(), absl::StatusCode::kUnavailable);
  gone.request.reset();
  EXPECT_EQ(fabric_->use(), before);  // both ends are not torn down yet
  const std::span<const std::byte> all = store_;
  CheckGather(stays, {64, {all.first(1000)}});  // copied: the store is not registered
  LanePair next = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  ASSERT_TRUE(next.request && next.serve);
  CheckGather(next, {64, {all.first(1000)}});
  EXPECT_EQ(fabric_->use().queue_pairs, before.queue_pairs + 2);
  EXPECT_EQ(fabric_->use().regions, before.regions + 4);
  held.LetGo();
  // One lane less and one more, and the store's piece for both lanes that requested it.
  AwaitRegions(before.regions + 2);
  test::AwaitUse(*fabric_, [&](const VerbsUse& use) {
    return use.queue_pairs == before.queue_pairs && use.receives == before.receives;
  });
  CheckGather(next, {64, {all.first(1000)}});
}

// The fabric ends right after its lanes: it waits for what they left.
TEST_F(VerbsTest, TheFabricsEndLeavesNothing) {
  auto side = std::make_shared<VerbsSideThread>();
  test::HeldJob held;
  const VerbsSourceId source = side->Open();
  Start(test::GuestVerbsOptions(), Store(1 << 20), side);
  std::vector<LanePair> lanes;
  for (int i = 0; i < 4; ++i) lanes.push_back(MakeLane(*fabric_, *listener_, test::kVerbsShape));
  HoldUp(*side, source, held);
  LanePair outlives = std::move(lanes.back());
  lanes.clear();
  std::thread end([&] {
    listener_.reset();
    fabric_.reset();
  });
  held.LetGo();
  end.join();
  // One queue pair for each end of the lane that is left. Only this test has its ends.
  const std::string left = test::OutputOf("rdma resource show qp");
  EXPECT_EQ(test::CountOf("type RC", left), 2) << left;
  outlives = {};
  EXPECT_EQ(test::KernelResources(), before_);
}

// Rows that a reply is being sent from may be reused as soon as the lane is destroyed. So what is
// under way then is not sent again, though the lane's end is not torn down yet.
TEST_F(VerbsTest, NothingIsSentFromTheStoreAfterALanesEnd) {
  auto side = std::make_shared<VerbsSideThread>();
  test::HeldJob held;
  const VerbsSourceId source = side->Open();
  VerbsOptions options = test::GuestVerbsOptions();
  options.timeout = 20;  // sent again for half a minute, if nothing stops it
  Start(options, Store(1 << 20), side);
  auto raw = std::make_unique<RawPeer>();
  std::unique_ptr<ServeLane> lane = ServeRaw(*raw);
  ASSERT_NE(lane, nullptr);
  const uint64_t before = fabric_->use().regions;
  const std::span<const std::byte> run = std::span<const std::byte>(store_).first(4000);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(raw->Send(IBV_WR_SEND_WITH_IMM, 100, EncodeImmediate(0, 0)), IBV_WC_SUCCESS);
    const std::optional<Arrival> arrival = AwaitRequest(*lane);
    ASSERT_TRUE(arrival.has_value());
    if (i == 1) {
      HoldUp(*side, source, held);
      raw.reset();  // will not acknowledge
    }
    ASSERT_TRUE(lane->PostGather(arrival->slot, 64, {&run, 1}, RegionType::kHost).ok());
    if (i == 0) {
      EXPECT_EQ(raw->Await(false)->status, IBV_WC_SUCCESS);
      AwaitRegions(before + 1);
    }
  }
  ASSERT_TRUE(lane->gathering(0));
  EXPECT_EQ(test::CountOf("state ERR", test::OutputOf("rdma resource show qp")), 0);
  lane.reset();
  EXPECT_EQ(test::CountOf("state ERR", test::OutputOf("rdma resource show qp")), 1);
  held.LetGo();
}

}  // namespace
}  // namespace ckv
