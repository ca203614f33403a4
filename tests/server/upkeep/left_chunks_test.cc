// Goal: a holder drops the chunks that corpora do not place on it any more, late enough, and no
// others. Method: as placement_keeper_test.cc; the fixture notes what the keeper drops.

#include "server/upkeep/left_chunks.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/upkeep/placement_fixture.h"

namespace ckv {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

class LeftChunksTest : public test::PlacementKeeperTest {
 protected:
  LeftChunksTest() { options.drop_after = seconds(20); }  // within the lease
  std::vector<ChunkId> Dropped() {
    absl::MutexLock lock(&gone_mu);
    std::vector<ChunkId> sorted = dropped;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  // Those of the corpus' chunks that are placed on h0.
  std::vector<ChunkId> Here(const std::string& name) {
    std::vector<ChunkId> ids;
    const auto corpus = *directory->state().Get(name, "");
    for (const ChunkPlacement& chunk : corpus->chunks) {
      if (chunk.holders().front().name == "h0") ids.push_back(chunk.id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  bool AwaitLeft(uint64_t left) {
    return Await([&](const PlacementKeeper::Stats& s) { return s.left_count == left; });
  }
  bool AwaitDropped(uint64_t count) {
    return Await([&](const PlacementKeeper::Stats& s) { return s.dropped_count == count; });
  }
  void Begin() {
    StartHolder();
    Join();
    ASSERT_TRUE(AwaitRounds(1));
  }
};

TEST_F(LeftChunksTest, AMovedCorpusLeavesChunksForAWhile) {
  Publish("a", 6, 1);
  Begin();
  const std::vector<ChunkId> here = Here("a");
  Publish("a", 6, 1, "h7");
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  clock.Advance(options.drop_after - seconds(1));
  Renew();
  EXPECT_EQ(Dropped(), std::vector<ChunkId>());
  clock.Advance(seconds(1));
  ASSERT_TRUE(AwaitDropped(3));
  EXPECT_EQ(Dropped(), here);
  EXPECT_EQ(keeper->stats().left_count, 0u);
}

TEST_F(LeftChunksTest, ADroppedCorpusLeavesWhatNoOtherPlacesHere) {
  Publish("a", 6, 1);
  Publish("b", 4, 1);  // the same two chunks first
  Begin();
  std::vector<ChunkId> only = Here("a");
  for (const ChunkId& id : Here("b")) std::erase(only, id);
  ASSERT_EQ(only.size(), 1u);
  ASSERT_TRUE(directory->state().Drop("a", "").ok());
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitDropped(1));
  EXPECT_EQ(Dropped(), only);
}

TEST_F(LeftChunksTest, ANewVersionLeavesTheOldChunks) {
  Publish("a", 6, 1);
  Begin();
  const std::vector<ChunkId> old = Here("a");
  Publish("a", 6, 2);
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitDropped(3));
  EXPECT_EQ(Dropped(), old);
}

TEST_F(LeftChunksTest, ChunksInUseStayLonger) {
  Publish("a", 6, 1);
  Begin();
  const std::vector<ChunkId> here = Here("a");
  {
    absl::MutexLock lock(&gone_mu);
    in_use.insert(here[0]);
  }
  Publish("a", 6, 1, "h7");
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitDropped(2));
  EXPECT_EQ(keeper->stats().left_count, 1u);
  {
    absl::MutexLock lock(&gone_mu);
    in_use.clear();
  }
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitDropped(3));
  EXPECT_EQ(Dropped(), here);
}

TEST_F(LeftChunksTest, ChunksThatArePlacedHereAgainStay) {
  Publish("a", 6, 1);
  Begin();
  Publish("a", 6, 1, "h7");
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  Publish("a", 6, 1);
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitLeft(0));
  EXPECT_EQ(Dropped(), std::vector<ChunkId>());
}

// A directory that lost its corpora places nothing, and a holder drops nothing for that.
TEST_F(LeftChunksTest, ADirectoryThatLostItsDiskDropsNothing) {
  Publish("a", 6, 1);
  Begin();
  StartDirectory();
  Join();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(keeper->stats().left_count, 0u);
  clock.Advance(2 * options.drop_after);
  Renew();
  EXPECT_EQ(Dropped(), std::vector<ChunkId>());
}

// Nor does another directory complete what the first one began.
TEST_F(LeftChunksTest, AnotherDirectoryForgetsWhatWasLeft) {
  Publish("a", 6, 1);
  Begin();
  Publish("a", 6, 1, "h7");
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  StartDirectory();
  Join();
  ASSERT_TRUE(AwaitRounds(3));
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitLeft(0));
  EXPECT_EQ(Dropped(), std::vector<ChunkId>());
}

TEST_F(LeftChunksTest, ADirectoryThatDoesNotAnswerIsQueriedAgain) {
  Publish("a", 6, 1);
  Begin();
  Publish("a", 6, 1, "h7");
  Renew();
  ASSERT_TRUE(AwaitLeft(3));
  source.Connect(nullptr);
  clock.Advance(options.drop_after);
  source.Connect(&directory->state());
  clock.Advance(options.retry_pause);
  ASSERT_TRUE(AwaitDropped(3));
}

TEST_F(LeftChunksTest, NothingIsDroppedWithoutATime) {
  options.drop_after = Duration(0);
  Publish("a", 6, 1);
  Begin();
  Publish("a", 6, 1, "h7");
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(keeper->stats().left_count, 0u);
  clock.Advance(minutes(600));
  EXPECT_EQ(Dropped(), std::vector<ChunkId>());
}

// A leased copy stays as long as a corpus lists it.
TEST_F(LeftChunksTest, ALeasedCopyIsDroppedOnceItIsWithdrawn) {
  Publish("a", 6, 1, "h7");
  Begin();
  const ChunkId copy = (*directory->state().Get("a", ""))->chunks[0].id;
  ASSERT_TRUE(directory->state().AnnounceReplicas(lease.lease_id, "", {{copy}}).ok());
  keeper->NoteLeased(copy);
  ASSERT_TRUE(Await([](const auto& s) { return s.left_count == 1; }));
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitLeft(1));
  EXPECT_EQ(Dropped(), std::vector<ChunkId>()) << "it is listed";
  ASSERT_TRUE(directory->state().WithdrawReplicas(lease.lease_id, "", {{copy}}).ok());
  clock.Advance(options.drop_after);
  ASSERT_TRUE(AwaitDropped(1));
  EXPECT_EQ(Dropped(), std::vector<ChunkId>{copy});
}

TEST(LeftChunksLimits, MoreThanItHoldsIsLeftToTheOperator) {
  LeftChunks left({.name = "h0"});
  std::vector<ChunkId> ids(LeftChunks::kCountMax + 1);
  left.Add(ids, 7, Instant());
  EXPECT_EQ(left.size(), 0u);
  ids.pop_back();
  left.Add(ids, 7, Instant());
  EXPECT_EQ(left.size(), LeftChunks::kCountMax);
  // Each call checks one page.
  uint64_t asked = 0;
  const auto count = [&](std::span<const ChunkId> page) {
    asked += page.size();
    return std::vector<uint32_t>(page.size(), 0);
  };
  const auto drop = [](const ChunkId& /*id*/, Duration /*idle_min*/) { return absl::OkStatus(); };
  EXPECT_EQ(*left.DropDue(7, Instant() + std::chrono::hours(1), count, drop), kIdsPerCallMax);
  EXPECT_EQ(asked, kIdsPerCallMax);
}

}  // namespace
}  // namespace ckv
