// Goal: the chunks of a holder past its elbow get leased copies elsewhere, as long as that lasts.
// Method: the state alone, with members that report load and copies, by a manual clock.

#include "server/directory/hot_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "server/directory/directory_state.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class HotCopiesTest : public testing::Test {
 protected:
  HotCopiesTest() {
    options_.clock = &clock_;
    options_.first_epoch = 1'000'000;
    options_.lease_ttl_max = seconds(100'000);
    state_ = std::make_unique<DirectoryState>(options_);
    state_->changes().StartInMemory();
    for (const char* name : {"h0", "h1", "h2"}) {
      leases_[name] = state_
                          ->Register({.id = {name},
                                      .role = MemberRole::kHolder,
                                      .control_address = std::string(name) + ":1",
                                      .epoch = {},
                                      .domain = {.host = name}},
                                     seconds(100'000))
                          ->lease_id;
      Renew(name);
    }
    const Corpus corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6, 7}, /*seed=*/3)
                              .Publish("docs", "acme", {{{"h0"}}});
    EXPECT_TRUE(state_->Publish(corpus, true, 0).ok());
  }
  void Renew(const std::string& name, const std::vector<ChunkId>& hot = {}) {
    MemberHealth health;
    health.capacity_bytes = uint64_t{1} << 30;
    health.used_bytes = used_[name];
    health.is_past_elbow = !hot.empty();
    health.hot = hot;
    EXPECT_TRUE(state_->KeepAlive(leases_[name], &health).ok());
  }
  void Tick(Duration after = seconds(6)) {
    clock_.Advance(after);
    state_->replication().Tick();
  }
  Corpus Docs() { return **state_->Get("docs", "acme"); }
  ChunkId IdOf(uint32_t chunk) { return Docs().chunks[chunk].id; }
  std::vector<CopyOrder> Orders(const std::string& name) {
    return *state_->replication().ListOrders(leases_[name], 0);
  }
  // The holder that has orders, which must be one.
  std::string Target() {
    std::string target;
    for (const auto& [name, lease] : leases_) {
      if (Orders(name).empty()) continue;
      EXPECT_EQ(target, "");
      target = name;
    }
    return target;
  }
  void Make(const std::string& name) {
    for (const CopyOrder& order : Orders(name)) {
      const CopyReport report = {order.corpus, order.chunk.id, ""};
      EXPECT_TRUE(state_->replication().ReportCopies(leases_[name], {&report, 1}).ok());
    }
  }

  ManualClock clock_;
  DirectoryOptions options_;
  std::unique_ptr<DirectoryState> state_;
  std::map<std::string, uint64_t> leases_, used_;
};

TEST_F(HotCopiesTest, AHotChunkIsCopiedUnderALease) {
  Tick();
  EXPECT_EQ(Target(), "");
  Renew("h0", {IdOf(1)});
  Tick();
  const std::string target = Target();
  ASSERT_NE(target, "");
  ASSERT_NE(target, "h0");
  const std::vector<CopyOrder> orders = Orders(target);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(orders[0].is_leased);
  EXPECT_EQ(orders[0].chunk.id, IdOf(1));
  EXPECT_EQ(orders[0].sources[0].control_address, "h0:1");
  const uint64_t version = Docs().version;
  Make(target);
  EXPECT_THAT(Docs().chunks[1].leased(), ElementsAre(HolderId{target}));
  EXPECT_THAT(Docs().chunks[0].leased(), IsEmpty());
  Tick();
  EXPECT_EQ(Docs().version, version) << "it is no change of the corpus";
  EXPECT_EQ(Target(), "") << "requesters may choose the copy now";
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 0u);
}

TEST_F(HotCopiesTest, IfTheCopyIsPastItsElbowTooThereIsAnother) {
  Renew("h0", {IdOf(1)});
  Tick();
  const std::string first = Target();
  Make(first);
  Renew(first, {IdOf(1)});
  Tick();
  const std::string second = Target();
  EXPECT_NE(second, "");
  EXPECT_NE(second, first);
  Make(second);
  EXPECT_THAT(Docs().chunks[1].leased(), ElementsAre(HolderId{first}, HolderId{second}));
}

TEST_F(HotCopiesTest, ACopyEndsAfterItsSourceWasCoolForAWhile) {
  Renew("h0", {IdOf(1)});
  Tick();
  const std::string target = Target();
  Make(target);
  Tick(HotCopies::kHold - seconds(1));
  EXPECT_THAT(Docs().chunks[1].leased(), SizeIs(1)) << "its source was past its elbow until now";
  Renew("h0");
  Tick(HotCopies::kHold - seconds(1));
  EXPECT_THAT(Docs().chunks[1].leased(), SizeIs(1));
  Tick();
  EXPECT_THAT(Docs().chunks[1].leased(), IsEmpty());
}

TEST_F(HotCopiesTest, ACopyEndsWithItsLease) {
  Renew("h0", {IdOf(1)});
  Tick();
  const std::string target = Target();
  Make(target);
  EXPECT_TRUE(state_->Deregister(leases_[target]).ok());
  EXPECT_THAT(Docs().chunks[1].leased(), IsEmpty());
  leases_.erase(target);
  Tick();
  EXPECT_NE(Target(), "") << "another holder takes its place";
}

TEST_F(HotCopiesTest, HoldersWithoutRoomGetNone) {
  used_["h1"] = used_["h2"] = uint64_t{900} << 20;  // more than three quarters
  Renew("h1");
  Renew("h2");
  Renew("h0", {IdOf(1)});
  Tick();
  EXPECT_EQ(Target(), "");
}

TEST_F(HotCopiesTest, DrainedAndBusyHoldersGetNone) {
  ASSERT_TRUE(state_->replication().SetDraining({"h1"}, true, kInstantMax).ok());
  Renew("h2", {IdOf(1)});
  Renew("h0", {IdOf(1)});
  Tick();
  EXPECT_EQ(Target(), "");
}

TEST_F(HotCopiesTest, RepairsAreFirst) {
  Corpus corpus = Docs();
  corpus.replica_count = 2;
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_leased({});
  ASSERT_TRUE(state_->Publish(corpus, true, 0).ok());
  Renew("h0", {IdOf(1)});
  Tick();
  for (const char* name : {"h1", "h2"}) {
    for (const CopyOrder& order : Orders(name)) EXPECT_FALSE(order.is_leased);
  }
}

TEST_F(HotCopiesTest, AnIdThatNoCorpusHasIsIgnored) {
  ChunkId unknown;
  unknown.bytes.fill(9);
  Renew("h0", {unknown});
  Tick();
  EXPECT_EQ(Target(), "");
}

TEST_F(HotCopiesTest, ItCanBeTurnedOff) {
  options_.copy_hot_chunks = false;
  DirectoryState quiet(options_);
  quiet.changes().StartInMemory();
  const uint64_t lease =
      quiet
          .Register(
              {.id = {"h0"}, .role = MemberRole::kHolder, .control_address = "h0:1", .epoch = {}},
              seconds(100'000))
          ->lease_id;
  const auto other = quiet.Register(
      {.id = {"h1"}, .role = MemberRole::kHolder, .control_address = "h1:1", .epoch = {}},
      seconds(100'000));
  const Corpus corpus =
      test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/3).Publish("docs", "", {{{"h0"}}});
  ASSERT_TRUE(quiet.Publish(corpus, true, 0).ok());
  MemberHealth health;
  health.capacity_bytes = uint64_t{1} << 30;
  ASSERT_TRUE(quiet.KeepAlive(other->lease_id, &health).ok());
  health.is_past_elbow = true;
  health.hot = {corpus.chunks[0].id};
  ASSERT_TRUE(quiet.KeepAlive(lease, &health).ok());
  clock_.Advance(seconds(6));
  quiet.replication().Tick();
  EXPECT_THAT(*quiet.replication().ListOrders(other->lease_id, 0), IsEmpty());
}

}  // namespace
}  // namespace ckv
