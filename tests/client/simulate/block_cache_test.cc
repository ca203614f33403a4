// Goal: a cache matches leading blocks alone, and loses the end of what was unused for longest.

#include "client/simulate/block_cache.h"

#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

using Blocks = std::vector<uint64_t>;

TEST(BlockCache, MatchesLeadingBlocks) {
  BlockCache cache;
  cache.Use(Blocks{1, 2, 3});
  EXPECT_EQ(cache.Match(Blocks{1, 2, 9, 3}), 2u);
  EXPECT_EQ(cache.Match(Blocks{9, 1, 2}), 0u);
  EXPECT_EQ(cache.Match(Blocks{1, 2, 3, 4}), 3u);
}

TEST(BlockCache, LosesTheEndOfTheChainUnusedForLongest) {
  BlockCache cache;
  cache.Use(Blocks{1, 2, 3});
  cache.Use(Blocks{4, 5, 6});
  cache.Use(Blocks{1, 2});
  cache.Shrink(5);
  EXPECT_EQ(cache.Match(Blocks{1, 2, 3}), 2u) << "3 was used before all of 4, 5, 6";
  cache.Shrink(4);
  EXPECT_EQ(cache.Match(Blocks{4, 5, 6}), 2u);
  EXPECT_EQ(cache.size(), 4u);
}

}  // namespace
}  // namespace ckv
