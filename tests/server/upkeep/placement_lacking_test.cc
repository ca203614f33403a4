// Goal: a holder reports to its directory which placed chunks it lacks, once for each change, and
// none that was moved or dropped. Method: the keeper with a real DirectoryState; the test removes
// and restores chunks.

#include <vector>

#include "gtest/gtest.h"
#include "server/upkeep/placement_keeper.h"
#include "tests/server/upkeep/placement_fixture.h"

namespace ckv {
namespace {

using test::PlacementKeeperTest;

TEST_F(PlacementKeeperTest, AHolderThatReturnsEmptyReportsIt) {
  Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  for (const ChunkPlacement& chunk : whole.chunks) Lose(chunk.id);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(source.lacking().size(), 3u) << "chunks 0, 2 and 4";
  EXPECT_EQ(keeper->stats().placed_count, 3u);
  EXPECT_EQ(keeper->stats().lacking_count, 3u);
  const FleetFacts facts = directory->state().health().Facts();
  ASSERT_EQ(facts.members.size(), 1u);
  EXPECT_EQ(facts.members[0].lacking_count, 3u);
  EXPECT_EQ(facts.members[0].sole_count, 3u);
  // Under another lease nothing is reported yet, so everything is reported again.
  Join();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(source.lacking_count(), 2u);
  EXPECT_EQ(directory->state().health().Facts().members[0].lacking_count, 3u);
}

TEST_F(PlacementKeeperTest, ReportsALossOnceAndItsRepairOnce) {
  Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(source.lacking_count(), 0u) << "nothing is lacking";
  Lose(whole.chunks[2].id);
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(source.lacking(), std::vector<ChunkId>{whole.chunks[2].id});
  Lose(whole.chunks[1].id);  // of h1: no request for it reaches this holder
  Renew();
  Lose(whole.chunks[4].id);
  Renew();
  ASSERT_TRUE(AwaitRounds(3));
  EXPECT_EQ(source.lacking().size(), 2u);
  Restore(whole.chunks[2].id);
  Restore(whole.chunks[4].id);
  Renew();
  ASSERT_TRUE(AwaitRounds(4));
  EXPECT_TRUE(source.lacking().empty());
  EXPECT_EQ(source.lacking_count(), 3u);
  EXPECT_EQ(keeper->stats().lacking_count, 0u);
}

// Otherwise the directory would continue to count the chunks as lacking.
TEST_F(PlacementKeeperTest, ReportsARepairLaterIfItCouldNotBefore) {
  Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  Lose(whole.chunks[2].id);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  ASSERT_EQ(directory->state().health().Facts().members[0].lacking_count, 1u);
  source.set_deaf_to_lacking(true);
  Restore(whole.chunks[2].id);
  Renew();
  ASSERT_TRUE(Await([](const auto& stats) { return !stats.last_error.ok(); }));
  source.set_deaf_to_lacking(false);
  clock.Advance(options.retry_pause);
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(source.lacking_count(), 2u);
  EXPECT_EQ(directory->state().health().Facts().members[0].lacking_count, 0u);
}

TEST_F(PlacementKeeperTest, AChunkThatWasMovedAwayIsNoLoss) {
  Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  Publish("a", 6, 1, "h7");
  for (const ChunkPlacement& chunk : whole.chunks) Lose(chunk.id);
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(source.lacking_count(), 0u);
  EXPECT_EQ(keeper->stats().placed_count, 0u);
}

}  // namespace
}  // namespace ckv
