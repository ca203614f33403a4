// Goal: the directory orders the copies that are missing, lists them only once they are made, and
// takes a restart of a holder for no loss. Method: the state alone, with members that join, renew,
// report copies, and end, by a clock that the test moves.

#include "server/directory/replication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "server/directory/directory_state.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr uint64_t kRate = 1000;

class ReplicationTest : public testing::Test {
 protected:
  ReplicationTest() {
    options_.clock = &clock_;
    options_.first_epoch = 1'000'000;
    options_.loss_after = seconds(60);
    options_.lease_ttl_max = seconds(1000);
    state_ = std::make_unique<DirectoryState>(options_);
    state_->changes().StartInMemory();
    for (const char* name : {"h0", "h1", "h2"}) Join(name);
  }
  void Join(const std::string& name, bool reports = true) {
    leases_[name] = state_
                        ->Register({.id = {name},
                                    .role = MemberRole::kHolder,
                                    .control_address = name + ":1",
                                    .epoch = {},
                                    .domain = {.host = name}},
                                   seconds(1000))
                        ->lease_id;
    if (reports) Renew(name);
  }
  // Returns the number of the holder's orders.
  uint32_t Renew(const std::string& name) {
    MemberHealth health;
    health.capacity_bytes = 1 << 30;
    health.copy_bytes_per_second = kRate;
    return state_->KeepAlive(leases_[name], &health)->copy_order_count;
  }
  void Leave(const std::string& name) { EXPECT_TRUE(state_->Deregister(leases_[name]).ok()); }
  void Tick(Duration after = seconds(1)) {
    clock_.Advance(after);
    state_->replication().Tick();
  }
  void Publish(const std::vector<std::vector<HolderId>>& lists) {
    const Corpus corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6, 7}, /*seed=*/3)
                              .Publish("docs", "", lists);
    EXPECT_TRUE(state_->Publish(corpus, true, 0).ok());
  }
  Corpus Docs() { return **state_->Get("docs", ""); }
  std::vector<CopyOrder> Orders(const std::string& name) {
    return *state_->replication().ListOrders(leases_[name], 0);
  }
  absl::Status Report(const std::string& name, const CopyOrder& order,
                      const std::string& error = "") {
    const CopyReport report = {order.corpus, order.chunk.id, error};
    return state_->replication().ReportCopies(leases_[name], {&report, 1});
  }
  bool Names(uint32_t chunk, const std::string& holder) {
    const std::vector<HolderId> holders = Docs().chunks[chunk].holders();
    return std::find(holders.begin(), holders.end(), HolderId{holder}) != holders.end();
  }

  ManualClock clock_;
  DirectoryOptions options_;
  std::unique_ptr<DirectoryState> state_;
  std::map<std::string, uint64_t> leases_;
};

TEST_F(ReplicationTest, OrdersNothingIfAllIsThere) {
  Publish({{{"h0"}, {"h1"}}});
  EXPECT_EQ(Docs().replica_count, 2u);
  Tick();
  EXPECT_EQ(Renew("h2"), 0u);
  EXPECT_THAT(Orders("h2"), IsEmpty());
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 0u);
}

TEST_F(ReplicationTest, AHolderIsLostOnlyAfterAWhile) {
  Publish({{{"h0"}, {"h1"}}});
  Leave("h1");
  Tick();
  EXPECT_THAT(Orders("h2"), IsEmpty());
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 3u);
  EXPECT_EQ(state_->replication().Facts().bytes_left, 0u);
  Tick(seconds(58));
  EXPECT_THAT(Orders("h2"), IsEmpty());
  Tick(seconds(2));
  const std::vector<CopyOrder> orders = Orders("h2");
  ASSERT_EQ(orders.size(), 3u);
  EXPECT_EQ(Renew("h2"), 3u);
  EXPECT_THAT(Orders("h0"), IsEmpty());
  EXPECT_EQ(orders[0].corpus, CorpusKey("", "docs"));
  EXPECT_EQ(orders[0].chunk.id, Docs().chunks[0].id);
  EXPECT_THAT(orders[0].chunk.holders(), IsEmpty());
  ASSERT_EQ(orders[0].sources.size(), 1u);
  EXPECT_EQ(orders[0].sources[0].control_address, "h0:1");
  const ReplicationFacts facts = state_->replication().Facts();
  EXPECT_GT(facts.bytes_left, 0u);
  EXPECT_EQ(facts.left, std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
                            static_cast<double>(facts.bytes_left) / kRate)));
}

TEST_F(ReplicationTest, AHolderThatReturnsInTimeIsNotReplaced) {
  Publish({{{"h0"}, {"h1"}}});
  Leave("h1");
  Tick(seconds(30));
  Join("h1");
  Tick(seconds(100));
  Tick(seconds(100));
  EXPECT_THAT(Orders("h2"), IsEmpty());
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 0u);
}

TEST_F(ReplicationTest, CopiesAreListedOnceTheyAreMade) {
  Publish({{{"h0"}, {"h1"}}});
  const uint64_t version = Docs().version;
  Leave("h1");
  Tick();
  Tick(seconds(60));
  const std::vector<CopyOrder> orders = Orders("h2");
  ASSERT_EQ(orders.size(), 3u);
  ASSERT_TRUE(Report("h2", orders[1]).ok());
  EXPECT_EQ(Orders("h2").size(), 2u);
  EXPECT_EQ(Renew("h2"), 2u);
  // It waits for the others, and not for long.
  Tick();
  EXPECT_EQ(Docs().version, version);
  Tick(seconds(6));
  EXPECT_GT(Docs().version, version);
  EXPECT_TRUE(Names(1, "h2"));
  EXPECT_FALSE(Names(1, "h1"));
  EXPECT_TRUE(Names(0, "h1")) << "a holder is replaced, never only removed";
  EXPECT_FALSE(Names(0, "h2"));
  ASSERT_TRUE(Report("h2", orders[0]).ok());
  ASSERT_TRUE(Report("h2", orders[2]).ok());
  Tick();
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(Names(i, "h2")) << i;
    EXPECT_FALSE(Names(i, "h1")) << i;
  }
  EXPECT_EQ(Docs().replica_count, 2u);
  Tick();
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 0u);
  EXPECT_EQ(state_->replication().Facts().bytes_left, 0u);
}

TEST_F(ReplicationTest, ACopyEndsWithTheLeaseOfItsHolder) {
  Publish({{{"h0"}, {"h1"}}});
  Leave("h1");
  Tick();
  Tick(seconds(60));
  for (const CopyOrder& order : Orders("h2")) ASSERT_TRUE(Report("h2", order).ok());
  Join("h2");  // another life of it, which may be empty
  Tick();
  for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(Names(i, "h2")) << i;
  EXPECT_EQ(Orders("h2").size(), 3u);
}

TEST_F(ReplicationTest, ACopyThatFailedIsPlannedElsewhereForAWhile) {
  Join("h3");
  Publish({{{"h0"}, {"h1"}}});
  Leave("h1");
  Tick();
  Tick(seconds(60));
  const std::string first = Orders("h2").empty() ? "h3" : "h2";
  const std::string second = first == "h2" ? "h3" : "h2";
  const std::vector<CopyOrder> orders = Orders(first);
  const size_t others = Orders(second).size();
  ASSERT_FALSE(orders.empty());
  ASSERT_TRUE(Report(first, orders[0], "no room").ok());
  Tick();
  EXPECT_EQ(Orders(first).size(), orders.size() - 1);
  EXPECT_EQ(Orders(second).size(), others + 1);
  Tick(Replication::kFailurePause);
  EXPECT_EQ(Orders(first).size(), orders.size());
}

TEST_F(ReplicationTest, AHolderThatLacksChunksGetsThem) {
  Publish({{{"h0"}, {"h1"}}});
  const uint64_t version = Docs().version;
  const std::vector<ChunkId> lost = {Docs().chunks[2].id};
  ASSERT_TRUE(state_->reports().ReportLacking(leases_["h1"], lost, true, true).ok());
  Tick();
  const std::vector<CopyOrder> orders = Orders("h1");
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].chunk.id, lost[0]);
  ASSERT_TRUE(Report("h1", orders[0]).ok());
  Tick();
  EXPECT_THAT(Orders("h1"), IsEmpty());
  ASSERT_TRUE(state_->reports().ReportLacking(leases_["h1"], {}, true, true).ok());
  Tick();
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 0u);
  EXPECT_EQ(Docs().version, version);
}

TEST_F(ReplicationTest, ADrainedHolderIsEmptyOnceItsCopiesAreListed) {
  Publish({{{"h0"}}});
  const auto drain = [this](bool on) {
    return state_->replication().SetDraining({"h0"}, on, kInstantMax);
  };
  const auto state = [this] { return *state_->replication().DrainOf({"h0"}); };
  EXPECT_FALSE(state().is_draining);
  EXPECT_EQ(state_->replication().DrainOf({"h9"}).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(drain(true).ok());
  Tick();
  EXPECT_TRUE(state().is_draining);
  EXPECT_FALSE(state().may_go);
  EXPECT_EQ(state().chunk_count, 3u);
  EXPECT_GT(state().bytes_left, 0u);
  EXPECT_GT(state().left, Duration(0));
  EXPECT_TRUE(state_->Members()[0].is_draining);
  EXPECT_FALSE(state_->Members()[1].is_draining);
  // It serves until the copies are there, and is their source.
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(Names(i, "h0"));
  size_t count = 0;
  for (const char* name : {"h1", "h2"}) {
    for (const CopyOrder& order : Orders(name)) {
      EXPECT_EQ(order.sources[0].id.name, "h0");
      ASSERT_TRUE(Report(name, order).ok());
      ++count;
    }
  }
  EXPECT_EQ(count, 3u);
  EXPECT_THAT(Orders("h0"), IsEmpty());
  Tick();
  for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(Names(i, "h0"));
  EXPECT_EQ(state().chunk_count, 0u);
  EXPECT_FALSE(state().may_go) << "requesters may not have seen the last version yet";
  Tick();
  Tick(Replication::kDrainSettle);
  EXPECT_TRUE(state().may_go);
  ASSERT_TRUE(drain(false).ok());
  EXPECT_FALSE(state().is_draining);
  EXPECT_FALSE(state().may_go);
}

TEST_F(ReplicationTest, ADrainedHolderServesNoLeasedCopies) {
  Publish({{{"h0"}}});
  const std::vector<ChunkId> ids = {Docs().chunks[0].id};
  ASSERT_TRUE((*state_->AnnounceReplicas(leases_["h1"], "", ids))[0]);
  EXPECT_EQ(Docs().chunks[0].leased(), std::vector<HolderId>{{"h1"}});
  ASSERT_TRUE(state_->replication().SetDraining({"h1"}, true, kInstantMax).ok());
  EXPECT_THAT(Docs().chunks[0].leased(), IsEmpty());
  EXPECT_FALSE((*state_->AnnounceReplicas(leases_["h1"], "", ids))[0]);
  ASSERT_TRUE(state_->replication().SetDraining({"h1"}, false, kInstantMax).ok());
  EXPECT_TRUE((*state_->AnnounceReplicas(leases_["h1"], "", ids))[0]);
}

TEST_F(ReplicationTest, AHolderIsNotDrainedWithoutAPlaceForItsChunks) {
  Leave("h1");
  Leave("h2");
  Publish({{{"h0"}}});
  ASSERT_TRUE(state_->replication().SetDraining({"h0"}, true, kInstantMax).ok());
  Tick();
  Tick(seconds(100));
  const auto state = *state_->replication().DrainOf({"h0"});
  EXPECT_FALSE(state.may_go);
  EXPECT_EQ(state.chunk_count, 3u);
  EXPECT_EQ(state.stuck.count, 3u);
  EXPECT_NE(state.stuck.why, "");
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(Names(i, "h0"));
}

// The end of the pause after a failure is no change of the fleet.
TEST_F(ReplicationTest, ADrainWhoseOnlyCopyFailedContinues) {
  Leave("h2");
  Publish({{{"h0"}}});
  ASSERT_TRUE(state_->replication().SetDraining({"h0"}, true, kInstantMax).ok());
  Tick();
  for (const CopyOrder& order : Orders("h1")) ASSERT_TRUE(Report("h1", order, "no route").ok());
  Tick();
  EXPECT_THAT(Orders("h1"), IsEmpty());
  EXPECT_EQ(state_->replication().DrainOf({"h0"})->stuck.count, 3u);
  Tick(Replication::kFailurePause);
  Tick();
  EXPECT_EQ(Orders("h1").size(), 3u);
  EXPECT_EQ(state_->replication().DrainOf({"h0"})->stuck.count, 0u);
}

TEST_F(ReplicationTest, ANewHolderTakesItsShare) {
  const Corpus corpus =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(16, 5), /*seed=*/4)
          .Publish("docs", "", {{{"h0"}, {"h1"}, {"h2"}}});
  ASSERT_TRUE(state_->Publish(corpus, false, 0).ok());
  Tick();
  Tick(Replication::kNewAfter);
  Join("h3", /*reports=*/false);
  Tick();
  EXPECT_THAT(Orders("h3"), IsEmpty()) << "its capacity is not known";
  Renew("h3");
  Tick();
  // A quarter of 48 copies.
  const std::vector<CopyOrder> orders = Orders("h3");
  ASSERT_EQ(orders.size(), 12u);
  EXPECT_EQ(state_->replication().Facts().under_replicated_count, 0u);
  for (const CopyOrder& order : orders) ASSERT_TRUE(Report("h3", order).ok());
  Tick();
  size_t count = 0;
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(Docs().chunks[i].holders().size(), 3u);
    count += Names(i, "h3") ? 1 : 0;
  }
  EXPECT_EQ(count, 12u);
  Tick();
  EXPECT_THAT(Orders("h3"), IsEmpty());
  // A holder that was emptied on purpose is not new.
  Publish({{{"h0"}}});
  Tick();
  Tick(seconds(100));
  EXPECT_THAT(Orders("h3"), IsEmpty());
}

TEST_F(ReplicationTest, ReportsWithoutAnOrderAreIgnored) {
  Publish({{{"h0"}}});
  Tick();
  CopyOrder order;
  order.corpus = CorpusKey("", "docs");
  order.chunk = Docs().chunks[0];
  EXPECT_TRUE(Report("h2", order).ok());
  Tick(seconds(10));
  EXPECT_THAT(Docs().chunks[0].holders(), ElementsAre(HolderId{"h0"}));
  EXPECT_EQ(state_->replication().ListOrders(7, 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(state_->replication().ReportCopies(7, {}).code(), absl::StatusCode::kNotFound);
}

// A corpus that is dropped or replaced meanwhile has no use for the copies.
TEST_F(ReplicationTest, AChangeOfTheCorpusIsFirst) {
  Publish({{{"h0"}, {"h1"}}});
  Leave("h1");
  Tick();
  Tick(seconds(60));
  const std::vector<CopyOrder> orders = Orders("h2");
  ASSERT_EQ(orders.size(), 3u);
  for (const CopyOrder& order : orders) ASSERT_TRUE(Report("h2", order).ok());
  Publish({{{"h0"}}});
  const uint64_t version = Docs().version;
  Tick();
  EXPECT_EQ(Docs().version, version);
  EXPECT_THAT(Docs().chunks[0].holders(), ElementsAre(HolderId{"h0"}));
  ASSERT_TRUE(state_->Drop("docs", "").ok());
  Tick();
  EXPECT_THAT(Orders("h2"), IsEmpty());
}

}  // namespace
}  // namespace ckv
