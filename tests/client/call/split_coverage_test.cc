// Goal: a call's ledger accepts each split of a block exactly once (I1), and detects what is
// missing.

#include "client/attend/split_coverage.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(SplitCoverage, EachSplitCountsOnce) {
  SplitCoverage coverage;
  coverage.Begin();
  coverage.AddBlock(2, 5);
  coverage.AddBlock(1, 3);
  EXPECT_FALSE(coverage.CheckComplete().ok());
  EXPECT_TRUE(coverage.Cover(0, 1, 2).ok());
  EXPECT_FALSE(coverage.CheckBlock(0).ok());
  EXPECT_EQ(coverage.Cover(0, 1, 2).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(coverage.Cover(0, 0, 3).ok());
  EXPECT_TRUE(coverage.CheckBlock(0).ok());
  EXPECT_FALSE(coverage.CheckComplete().ok());
  EXPECT_TRUE(coverage.Cover(1, 0, 3).ok());
  EXPECT_TRUE(coverage.CheckComplete().ok());
}

TEST(SplitCoverage, RefusesSplitsOfAnotherCall) {
  SplitCoverage coverage;
  coverage.Begin();
  coverage.AddBlock(2, 5);
  EXPECT_EQ(coverage.Cover(1, 0, 1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(coverage.Cover(0, 2, 1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(coverage.Cover(0xffffffff, 0, 1).code(), absl::StatusCode::kInternal);
}

TEST(SplitCoverage, ChunksMustAddUp) {
  for (const uint32_t chunks : {1u, 3u, 100u}) {
    SplitCoverage coverage;
    coverage.Begin();
    coverage.AddBlock(1, 2);
    EXPECT_TRUE(coverage.Cover(0, 0, chunks).ok());
    EXPECT_EQ(coverage.CheckBlock(0).code(), absl::StatusCode::kInternal);
  }
}

TEST(SplitCoverage, ABlockWithoutSplitsIsComplete) {
  SplitCoverage coverage;
  coverage.Begin();
  EXPECT_TRUE(coverage.CheckComplete().ok());
  coverage.AddBlock(0, 0);
  EXPECT_TRUE(coverage.CheckComplete().ok());
}

// Splits arrive in any order, a missing one is found wherever it is, and the next call starts
// empty.
TEST(SplitCoverage, AcceptsSplitsInAnyOrder) {
  std::mt19937 rng(1);
  SplitCoverage coverage;
  for (int call = 0; call < 200; ++call) {
    coverage.Begin();
    std::vector<std::pair<uint32_t, uint32_t>> splits;
    const uint32_t blocks = 1 + rng() % 8;
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint32_t count = 1 + rng() % 4;
      coverage.AddBlock(count, count * 7);
      for (uint32_t split = 0; split < count; ++split) splits.push_back({block, split});
    }
    std::shuffle(splits.begin(), splits.end(), rng);
    for (const auto& [block, split] : splits) {
      ASSERT_FALSE(coverage.CheckComplete().ok());
      ASSERT_TRUE(coverage.Cover(block, split, 7).ok());
    }
    ASSERT_TRUE(coverage.CheckComplete().ok());
  }
}

}  // namespace
}  // namespace ckv
