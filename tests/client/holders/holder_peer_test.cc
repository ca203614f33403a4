// Goal: a holder's kernel target is known as soon as its member is, without a connection, and is
// that of its latest incarnation. Method: a peer table over a directory that counts its calls.

#include "client/holders/holder_peer.h"

#include <memory>

#include "client/live_costs.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::TestFleet;

constexpr KernelTargetId kOne = KernelTargetId::kAvx3, kAnother = KernelTargetId::kAvx2;

struct HolderPeerTest : testing::Test {
  static Member MemberOf(size_t i, uint64_t epoch, KernelTargetId target) {
    return {TestFleet::Name(i), MemberRole::kHolder, "inproc:0", {epoch}, target};
  }
  KernelTargetId TargetOf(size_t i) {
    peers.Hear();
    return (*peers.Find(TestFleet::Name(i)))->model.target();
  }

  TestFleet fleet{{}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
};

TEST_F(HolderPeerTest, AMemberFromAWatchIsUsedBeforeAnythingIsConnected) {
  EXPECT_EQ(TargetOf(0), KernelTargetId::kUnknown);
  for (const size_t i : {0, 1})
    peers.OnMemberUp(MemberOf(i, 5, kOne));  // h0 was looked up, h1 was not
  view.Invalidate("");  // as a restarted watch does after it reported the members
  EXPECT_EQ(TargetOf(0), kOne);
  EXPECT_EQ(TargetOf(1), kOne);
  EXPECT_EQ(fleet.directory_calls(), 0);
}

TEST_F(HolderPeerTest, KeepsTheTargetOfTheLatestIncarnation) {
  peers.OnMemberUp(MemberOf(0, 5, kOne));
  EXPECT_EQ(TargetOf(0), kOne);
  const uint64_t count = peers.target_count();
  peers.OnMemberUp(MemberOf(0, 6, kOne));
  EXPECT_EQ(peers.target_count(), count) << "nothing to choose anew for";
  peers.OnMemberUp(MemberOf(0, 7, kAnother));
  EXPECT_EQ(TargetOf(0), kAnother);
  EXPECT_GT(peers.target_count(), count);
  peers.OnMemberUp(MemberOf(0, 6, kOne));
  EXPECT_EQ(TargetOf(0), kAnother);
  peers.OnMemberUp(MemberOf(0, 8, KernelTargetId::kUnknown));
  EXPECT_EQ(TargetOf(0), KernelTargetId::kUnknown);
}

// A session reports the holder's epoch, and not its target.
TEST_F(HolderPeerTest, AnIncarnationWithoutAReportedTargetHasNone) {
  peers.OnMemberUp(MemberOf(0, 5, kOne));
  HolderPeer& peer = **peers.Find(TestFleet::Name(0));
  peers.Meet(peer, {5}, kInstantMax);
  EXPECT_EQ(fleet.directory_calls(), 0);
  EXPECT_EQ(TargetOf(0), kOne);
  fleet.set_directory_down(true);
  peers.Meet(peer, {6}, kInstantMax);
  EXPECT_EQ(TargetOf(0), KernelTargetId::kUnknown);
  peers.OnMemberUp(MemberOf(0, 6, kAnother));
  EXPECT_EQ(TargetOf(0), kAnother);
}

TEST_F(HolderPeerTest, AHolderIsUnreachedUntilASessionOpensOrItRestarts) {
  peers.OnMemberUp(MemberOf(0, 5, kOne));
  HolderPeer& peer = **peers.Find(TestFleet::Name(0));
  EXPECT_EQ(peer.View().unreached_at, std::nullopt);
  peer.connection.NoteReach(Instant{10});
  peer.connection.NoteReach(Instant{20});
  EXPECT_EQ(peer.View().unreached_at, Instant{20});
  EXPECT_EQ(peer.View().unreached_since, Instant{10});
  peer.connection.NoteReach(std::nullopt);
  EXPECT_EQ(peer.View().unreached_at, std::nullopt);
  peer.connection.NoteReach(Instant{30});
  EXPECT_EQ(peer.View().unreached_since, Instant{30});
  peers.OnMemberUp(MemberOf(0, 6, kOne));
  peers.Hear();
  EXPECT_EQ(peer.View().unreached_at, std::nullopt);
  peer.connection.NoteReach(Instant{40});
  EXPECT_EQ(peer.View().unreached_since, Instant{40}) << "of this life";
}

// Whether rows in the local row cache give the bits of their holders.
TEST_F(HolderPeerTest, HoldersHaveATargetIfAllOfThemReportIt) {
  LiveCosts costs(&peers, nullptr, Clock::Real(), Backend::Cpu(), LaneShape());
  const auto chunks = test::MakeTestCorpus(test::TestGeometry(), {3, 4}, 1);
  const auto corpus = std::make_shared<const Corpus>(
      chunks.Publish("c", "", {{TestFleet::Name(0)}, {TestFleet::Name(1)}}));
  EXPECT_FALSE(costs.HaveTarget(corpus, kOne));
  EXPECT_FALSE(costs.HaveTarget(corpus, KernelTargetId::kUnknown)) << "unknown equals nothing";
  peers.OnMemberUp(MemberOf(0, 1, kOne));
  EXPECT_FALSE(costs.HaveTarget(corpus, kOne));
  peers.OnMemberUp(MemberOf(1, 1, kOne));
  EXPECT_TRUE(costs.HaveTarget(corpus, kOne));
  EXPECT_FALSE(costs.HaveTarget(corpus, kAnother));
  peers.OnMemberUp(MemberOf(1, 2, kAnother));
  EXPECT_FALSE(costs.HaveTarget(corpus, kOne));
  EXPECT_FALSE(costs.HaveTarget(corpus, kAnother));
}

}  // namespace
}  // namespace ckv
