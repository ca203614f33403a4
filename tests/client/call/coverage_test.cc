// Goal: no duplicate, gap or stranger passes (I1).

#include "client/call/coverage.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(Coverage, EveryRowOnceIsComplete) {
  Coverage coverage;
  coverage.Begin(2, 10);
  EXPECT_TRUE(coverage.Cover(0, 0, 4).ok());
  EXPECT_TRUE(coverage.Cover(1, 0, 10).ok());
  EXPECT_FALSE(coverage.CheckComplete().ok());
  EXPECT_TRUE(coverage.Cover(0, 4, 6).ok());
  EXPECT_TRUE(coverage.CheckComplete().ok());
}

TEST(Coverage, TwiceIsRefused) {
  Coverage coverage;
  coverage.Begin(1, 10);
  ASSERT_TRUE(coverage.Cover(0, 0, 5).ok());
  EXPECT_EQ(coverage.Cover(0, 0, 5).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(coverage.Cover(0, 4, 2).code(), absl::StatusCode::kInternal);
  // What was refused is not counted.
  EXPECT_TRUE(coverage.Cover(0, 5, 5).ok());
  EXPECT_TRUE(coverage.CheckComplete().ok());
}

TEST(Coverage, GapsAndStrangersAreRefused) {
  Coverage coverage;
  coverage.Begin(2, 10);
  EXPECT_FALSE(coverage.Cover(0, 1, 9).ok());
  EXPECT_FALSE(coverage.Cover(2, 0, 10).ok());
  EXPECT_FALSE(coverage.Cover(0, 0, 11).ok());
  EXPECT_FALSE(coverage.Cover(0, 0xffffffff, 2).ok());
  coverage.Begin(0, 10);
  EXPECT_TRUE(coverage.CheckComplete().ok());
}

// Method: a random cut of the rows of every piece, delivered whole and in order of rows, is
// complete; with any one delivery dropped or doubled it is not.
TEST(Coverage, AnyDropOrDoubleShows) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const uint32_t pieces = 1 + rng() % 5, rows = 1 + rng() % 40;
    struct Delivery {
      uint32_t piece, begin, count;
    };
    std::vector<Delivery> deliveries;
    for (uint32_t row = 0; row < rows;) {
      const uint32_t count = std::min<uint32_t>(1 + rng() % 8, rows - row);
      for (uint32_t piece = 0; piece < pieces; ++piece) deliveries.push_back({piece, row, count});
      row += count;
    }
    const auto complete = [&](const std::vector<Delivery>& all) {
      Coverage coverage;
      coverage.Begin(pieces, rows);
      for (const Delivery& d : all) {
        if (!coverage.Cover(d.piece, d.begin, d.count).ok()) return false;
      }
      return coverage.CheckComplete().ok();
    };
    EXPECT_TRUE(complete(deliveries));
    const size_t at = rng() % deliveries.size();
    std::vector<Delivery> dropped = deliveries, doubled = deliveries;
    dropped.erase(dropped.begin() + std::ptrdiff_t(at));
    doubled.insert(doubled.begin() + std::ptrdiff_t(at + rng() % (doubled.size() - at)),
                   deliveries[at]);
    EXPECT_FALSE(complete(dropped));
    EXPECT_FALSE(complete(doubled));
  }
}

}  // namespace
}  // namespace ckv
