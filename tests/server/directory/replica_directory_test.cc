// Goal: the directory lists copies that members made exactly as long as they may answer, and never
// confuses them with the holders a corpus was published with.
// Method: a DirectoryState on a ManualClock; what Get, Locate and orphans return after each step.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "server/directory/directory_state.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ReplicaDirectoryTest : public testing::Test {
 protected:
  static DirectoryOptions Options(Clock* clock) {
    DirectoryOptions options;
    options.clock = clock;
    options.replica_count_max = 10;
    return options;
  }

  // Of three chunks, held by "a"; versions of one name and seed have the same chunks.
  static Corpus MakeCorpus(const std::string& name, const std::string& tenant = "",
                           const std::vector<HolderId>& holders = {HolderId{"a"}}) {
    return test::MakeTestCorpus(test::TestGeometry(), {2, 2, 2}, /*seed=*/1)
        .Publish(name, tenant, {holders});
  }
  void Publish(const Corpus& corpus, bool replace = false) {
    const auto version = state_.Publish(corpus, replace, 0);
    ASSERT_TRUE(version.ok()) << version.status();
  }
  uint64_t Register(const std::string& name, MemberRole role = MemberRole::kHolder) {
    const Member member{.id = {name}, .role = role, .control_address = "h:1", .epoch = {}};
    const auto grant = state_.Register(member, seconds(3));
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? grant->lease_id : 0;
  }
  std::vector<bool> Announce(uint64_t lease, const std::vector<ChunkId>& ids,
                             const std::string& tenant = "") {
    const auto accepted = state_.AnnounceReplicas(lease, tenant, ids);
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    return accepted.ok() ? *accepted : std::vector<bool>();
  }
  // The leased members of each chunk, as "b,c||".
  std::string Leased(const std::string& name, const std::string& tenant = "") {
    const auto corpus = state_.Get(name, tenant);
    if (!corpus.ok()) return std::string(corpus.status().message());
    std::string text;
    for (const ChunkPlacement& chunk : (*corpus)->chunks) {
      if (&chunk != &(*corpus)->chunks[0]) text += "|";
      for (size_t i = 0; i < chunk.leased().size(); ++i)
        text += (i == 0 ? "" : ",") + chunk.leased()[i].name;
    }
    return text;
  }

  ManualClock clock_;
  DirectoryState state_{Options(&clock_)};
  const Corpus corpus_ = MakeCorpus("c");
  const ChunkId first_ = corpus_.chunks[0].id;
  const ChunkId second_ = corpus_.chunks[1].id;
  const ChunkId unplaced_ = test::MakeTestCorpus(test::TestGeometry(), {3}, 9).chunks[0].info.id;
};

TEST_F(ReplicaDirectoryTest, ListsReplicasUntilTheyAreWithdrawn) {
  Publish(corpus_);
  const uint64_t b = Register("b");
  const uint64_t c = Register("c");
  EXPECT_THAT(Announce(b, {first_, unplaced_, second_}), ElementsAre(true, false, true));
  EXPECT_THAT(Announce(c, {first_}), ElementsAre(true));
  EXPECT_THAT(Announce(b, {first_}), ElementsAre(true)) << "again";
  EXPECT_EQ(Leased("c"), "b,c|b|");
  EXPECT_EQ(state_.counts().replica_count, 3u);
  const auto located = state_.Locate(first_, "");
  ASSERT_EQ(located.size(), 1u);
  EXPECT_THAT(located[0].chunk.leased(), ElementsAre(HolderId{"b"}, HolderId{"c"}));
  EXPECT_THAT(located[0].chunk.holders(), ElementsAre(HolderId{"a"}));

  ASSERT_TRUE(state_.WithdrawReplicas(b, std::nullopt, {{first_, unplaced_}}).ok());
  EXPECT_EQ(Leased("c"), "c|b|");
  ASSERT_TRUE(state_.Deregister(c).ok());
  EXPECT_EQ(Leased("c"), "|b|");
  ASSERT_TRUE(state_.WithdrawReplicas(b, std::nullopt, {{second_}}).ok());
  EXPECT_EQ(state_.counts().replica_count, 0u);
  EXPECT_EQ(state_.Get("c", "")->get(), state_.Get("c", "")->get()) << "no copy without any";
}

TEST_F(ReplicaDirectoryTest, OnlyALiveLeaseOfAHolderMay) {
  Publish(corpus_);
  const uint64_t requester = Register("r", MemberRole::kRequester);
  const auto refused = state_.AnnounceReplicas(requester, "", {{first_}});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("'r' is no holder"));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(state_.WithdrawReplicas(requester, std::nullopt, {{first_}})));
  EXPECT_TRUE(absl::IsNotFound(state_.AnnounceReplicas(123, "", {{first_}}).status()));
  EXPECT_TRUE(absl::IsNotFound(state_.WithdrawReplicas(123, std::nullopt, {{first_}})));
  const std::vector<ChunkId> many(DirectoryState::kReplicaIdCountMax + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(state_.AnnounceReplicas(Register("b"), "", many).status()));
}

// Goal: no caller is sent to a member whose lease has run out, whichever call looks first.
TEST_F(ReplicaDirectoryTest, EndsWithTheLease) {
  Publish(corpus_);
  const uint64_t b = Register("b");
  Announce(b, {first_});
  clock_.Advance(seconds(2));
  ASSERT_TRUE(state_.KeepAlive(b).ok());
  clock_.Advance(seconds(2));
  EXPECT_EQ(Leased("c"), "b||");
  clock_.Advance(seconds(1));
  EXPECT_EQ(Leased("c"), "||");
  EXPECT_TRUE(absl::IsNotFound(state_.AnnounceReplicas(b, "", {{first_}}).status()));
  // A name that registers again has nothing until it announces it; nor has its earlier incarnation.
  const uint64_t again = Register("b");
  EXPECT_EQ(Leased("c"), "||");
  Announce(again, {second_});
  const uint64_t newest = Register("b");
  EXPECT_EQ(Leased("c"), "||");
  EXPECT_TRUE(absl::IsNotFound(state_.AnnounceReplicas(again, "", {{first_}}).status()));
  Announce(newest, {first_});
  EXPECT_EQ(Leased("c"), "b||");
}

TEST_F(ReplicaDirectoryTest, AHolderOfTheCorpusAddsNothing) {
  Publish(corpus_);
  EXPECT_THAT(Announce(Register("a"), {first_}), ElementsAre(true));
  EXPECT_EQ(Leased("c"), "||");
  EXPECT_EQ(state_.counts().replica_count, 0u);
  // It does to another corpus that was published without it.
  Publish(MakeCorpus("d", "red", {HolderId{"z"}}));
  const uint64_t a = Register("a");
  EXPECT_THAT(Announce(a, {first_}), ElementsAre(true));
  EXPECT_EQ(Leased("c"), "||");
  EXPECT_EQ(Leased("d", "red"), "a||");
}

// Goal: a tenant that publishes the ids of another tenant's chunks, which can be guessed, sees none
// of their copies, nor that these appear and disappear (I6). A copy that everyone may read is
// visible to everyone.
TEST_F(ReplicaDirectoryTest, NotifiesOnlyTenantsThatMayRead) {
  Publish(MakeCorpus("r", "red"));
  Publish(MakeCorpus("b", "blue"));
  const auto watcher = state_.Watch("blue");
  ASSERT_TRUE(watcher.ok());
  const auto changes = [&] {
    int count = 0;
    for (;;) {
      const auto event = (*watcher)->Next(clock_.Now());
      if (!event.ok() || !event->has_value()) return count;
      if ((*event)->kind == DirectoryEvent::Kind::kReplicasChanged) ++count;
    }
  };
  const uint64_t x = Register("x"), y = Register("y");
  EXPECT_THAT(Announce(x, {first_, unplaced_}, "red"), ElementsAre(true, false));
  EXPECT_EQ(changes(), 0);
  EXPECT_THAT(Announce(y, {first_, second_}, "green"), ElementsAre(false, false));
  EXPECT_EQ(Leased("r", "red"), "x||");
  EXPECT_EQ(Leased("b", "blue"), "||");
  EXPECT_THAT(state_.Locate(first_, "blue")[0].chunk.leased(), IsEmpty());
  Announce(x, {first_});
  Announce(y, {first_}, "blue");
  EXPECT_EQ(Leased("r", "red"), "x||") << "once, though announced twice";
  EXPECT_EQ(Leased("b", "blue"), "x,y||");
  ASSERT_TRUE(state_.WithdrawReplicas(x, "", {{first_}}).ok());
  EXPECT_EQ(Leased("r", "red"), "x||");
  EXPECT_EQ(Leased("b", "blue"), "y||");
  ASSERT_TRUE(state_.WithdrawReplicas(x, std::nullopt, {{first_}}).ok());
  EXPECT_EQ(Leased("r", "red"), "||");
  Announce(x, {second_}, "red");
  ASSERT_TRUE(state_.Deregister(x).ok());
  EXPECT_EQ(state_.counts().replica_count, 1u);
  DirectoryState::Orphans orphans;
  ASSERT_TRUE(state_.Drop("b", "blue", &orphans).ok());
  ASSERT_TRUE(state_.Drop("r", "red", &orphans).ok());
  EXPECT_EQ(state_.counts().replica_count, 0u);
}

TEST_F(ReplicaDirectoryTest, Limits) {
  std::vector<HolderId> holders;
  for (int i = 0; i < 6; ++i) holders.push_back({absl::StrFormat("h%d", i)});
  Publish(MakeCorpus("c", "", holders));
  EXPECT_THAT(Announce(Register("x0"), {first_}), ElementsAre(true));
  EXPECT_THAT(Announce(Register("x1"), {first_}), ElementsAre(true));
  EXPECT_THAT(Announce(Register("x2"), {first_, second_}), ElementsAre(false, true));
  EXPECT_EQ(Leased("c"), "x0,x1|x2|");
  // A new version with more holders leaves room for one: the list stays within the limit.
  holders.push_back({"h6"});
  Publish(MakeCorpus("c", "", holders), /*replace=*/true);
  EXPECT_EQ(Leased("c"), "x0|x2|");
  EXPECT_TRUE(ValidateCorpus(**state_.Get("c", "")).ok());

  // replica_count_max is 10, of which 3 are taken.
  const auto other = test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(8, 1), 5);
  Publish(other.Publish("o", "", {{HolderId{"a"}}}));
  std::vector<ChunkId> ids;
  for (const auto& chunk : other.chunks) ids.push_back(chunk.info.id);
  std::vector<bool> expected(7, true);
  expected.push_back(false);
  EXPECT_EQ(Announce(Register("y"), ids), expected);
  EXPECT_EQ(state_.counts().replica_count, 10u);
}

TEST_F(ReplicaDirectoryTest, ReadReplicasAreNotPublished) {
  Publish(corpus_);
  Announce(Register("b"), {second_});
  const Corpus read = **state_.Get("c", "");
  const auto refused = state_.Publish(read, /*replace=*/true, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("chunk 1: the directory sets leased"));
}

TEST_F(ReplicaDirectoryTest, ANewVersionKeepsTheCopiesOfChunksItHas) {
  Publish(corpus_);
  Announce(Register("b"), {first_, second_});
  Corpus smaller = corpus_;
  smaller.chunks.erase(smaller.chunks.begin());
  DirectoryState::Orphans orphans;
  ASSERT_TRUE(state_.Publish(smaller, /*replace=*/true, 0, &orphans).ok());
  EXPECT_EQ(Leased("c"), "b|");
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(orphans[0].id, first_);
  EXPECT_THAT(orphans[0].holders(), ElementsAre(HolderId{"a"}));
  EXPECT_THAT(orphans[0].leased(), ElementsAre(HolderId{"b"}));
  EXPECT_EQ(state_.counts().replica_count, 1u) << "nobody is told of the orphan's copy";
}

TEST_F(ReplicaDirectoryTest, OrphansNameLeasedMembersOnceNoCorpusHasTheChunk) {
  Publish(corpus_);
  Publish(MakeCorpus("d", "red", {HolderId{"z"}}));
  Announce(Register("b"), {first_});
  DirectoryState::Orphans orphans;
  ASSERT_TRUE(state_.Drop("c", "", &orphans).ok());
  ASSERT_EQ(orphans.size(), 3u);
  EXPECT_THAT(orphans[0].leased(), IsEmpty()) << "red's corpus has it";
  EXPECT_EQ(Leased("d", "red"), "b||");
  ASSERT_TRUE(state_.Drop("d", "red", &orphans).ok());
  EXPECT_THAT(orphans[0].leased(), ElementsAre(HolderId{"b"}));
  EXPECT_EQ(state_.counts().replica_count, 0u);
}

// Goal: a chunk counts as long as any tenant's corpus places it on the holder, and no longer.
TEST_F(ReplicaDirectoryTest, ReferencesAreCountedOverAllTenants) {
  Publish(MakeCorpus("c", "red"));
  Corpus blue = MakeCorpus("c", "blue", {HolderId{"a"}, HolderId{"b"}});
  blue.chunks.resize(2);
  Publish(blue);
  std::vector<ChunkId> ids = {ChunkId{}};
  for (const ChunkPlacement& chunk : MakeCorpus("").chunks) ids.push_back(chunk.id);
  const auto count = [&](std::string_view holder) { return state_.CountReferences(ids, holder); };
  EXPECT_THAT(count(""), ElementsAre(0, 2, 2, 1));
  EXPECT_THAT(count("a"), ElementsAre(0, 2, 2, 1));
  EXPECT_THAT(count("b"), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(count("r"), ElementsAre(0, 0, 0, 0));
  // A leased copy counts while the directory lists it.
  const uint64_t lease = Register("r");
  EXPECT_THAT(Announce(lease, {ids[3]}, "red"), ElementsAre(true));
  EXPECT_THAT(count("r"), ElementsAre(0, 0, 0, 1));
  ASSERT_TRUE(state_.Drop("c", "red").ok());
  EXPECT_THAT(count(""), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(count("r"), ElementsAre(0, 0, 0, 0));
  ASSERT_TRUE(state_.Drop("c", "blue").ok());
  EXPECT_THAT(count(""), ElementsAre(0, 0, 0, 0));
}

TEST_F(ReplicaDirectoryTest, NotifiesWatchersOfTheCorpus) {
  Publish(corpus_);
  const uint64_t b = Register("b");
  auto watcher = state_.Watch("");
  ASSERT_TRUE(watcher.ok());
  const auto changes = [&] {
    int count = 0;
    for (;;) {
      const auto event = (*watcher)->Next(clock_.Now());
      if (!event.ok() || !event->has_value()) return count;
      if ((*event)->kind == DirectoryEvent::Kind::kReplicasChanged) ++count;
    }
  };
  changes();
  Announce(b, {first_, second_});
  EXPECT_EQ(changes(), 1) << "once a call";
  Announce(b, {first_});
  EXPECT_EQ(changes(), 0);
  clock_.Advance(seconds(3));
  state_.Expire();
  EXPECT_EQ(changes(), 1);
}

}  // namespace
}  // namespace ckv
