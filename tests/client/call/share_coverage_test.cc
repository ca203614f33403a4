// Goal: a call's ledger accepts each share of a block exactly once (I1), and detects what is
// missing.

#include "client/attend/share_coverage.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(ShareCoverage, EachShareCountsOnce) {
  ShareCoverage coverage;
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

TEST(ShareCoverage, RefusesSharesOfAnotherCall) {
  ShareCoverage coverage;
  coverage.Begin();
  coverage.AddBlock(2, 5);
  EXPECT_EQ(coverage.Cover(1, 0, 1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(coverage.Cover(0, 2, 1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(coverage.Cover(0xffffffff, 0, 1).code(), absl::StatusCode::kInternal);
}

TEST(ShareCoverage, PiecesMustAddUp) {
  for (const uint32_t pieces : {1u, 3u, 100u}) {
    ShareCoverage coverage;
    coverage.Begin();
    coverage.AddBlock(1, 2);
    EXPECT_TRUE(coverage.Cover(0, 0, pieces).ok());
    EXPECT_EQ(coverage.CheckBlock(0).code(), absl::StatusCode::kInternal);
  }
}

TEST(ShareCoverage, ABlockWithoutSharesIsComplete) {
  ShareCoverage coverage;
  coverage.Begin();
  EXPECT_TRUE(coverage.CheckComplete().ok());
  coverage.AddBlock(0, 0);
  EXPECT_TRUE(coverage.CheckComplete().ok());
}

// Shares arrive in any order, a missing one is found wherever it is, and the next call starts
// empty.
TEST(ShareCoverage, AcceptsSharesInAnyOrder) {
  std::mt19937 rng(1);
  ShareCoverage coverage;
  for (int call = 0; call < 200; ++call) {
    coverage.Begin();
    std::vector<std::pair<uint32_t, uint32_t>> shares;
    const uint32_t blocks = 1 + rng() % 8;
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint32_t count = 1 + rng() % 4;
      coverage.AddBlock(count, count * 7);
      for (uint32_t share = 0; share < count; ++share) shares.push_back({block, share});
    }
    std::shuffle(shares.begin(), shares.end(), rng);
    for (const auto& [block, share] : shares) {
      ASSERT_FALSE(coverage.CheckComplete().ok());
      ASSERT_TRUE(coverage.Cover(block, share, 7).ok());
    }
    ASSERT_TRUE(coverage.CheckComplete().ok());
  }
}

}  // namespace
}  // namespace ckv
