// Goal: a mask is read as what it says, cell by cell, and anything else in it is refused.
// Method: random masks against a loop over their values.

#include "client/bindings/ggml/visible_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ckv::ggml {
namespace {

using testing::ElementsAre;

constexpr uint16_t kHidden = 0xfc00;

TEST(VisibleCells, AreTheFewestRanges) {
  std::mt19937 rng(1);
  for (int round = 0; round < 400; ++round) {
    std::vector<uint16_t> mask(1 + rng() % 70);
    const uint32_t run = 1 + rng() % 20;
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = i % run != 0 && i > 0 ? mask[i - 1]
                                      : std::array<uint16_t, 3>{0, 0x8000, kHidden}[rng() % 3];
    }
    const uint32_t skip = rng() % 2;  // also at addresses that are no multiple of 8
    if (skip >= mask.size()) continue;
    std::vector<CellRange> want;
    for (uint32_t i = 0; i < mask.size() - skip; ++i) {
      if (mask[skip + i] == kHidden) continue;
      if (!want.empty() && want.back().end == i) {
        ++want.back().end;
      } else {
        want.push_back({i, i + 1});
      }
    }
    std::vector<CellRange> got = {{900, 901}};  // what is there stays
    const auto count = static_cast<uint32_t>(mask.size() - skip);
    ASSERT_TRUE(AppendVisible(mask.data() + skip, count, got).ok());
    got.erase(got.begin());
    EXPECT_EQ(got, want) << "round " << round;
  }
}

TEST(VisibleCells, NoMaskShowsAll) {
  std::vector<CellRange> ranges;
  ASSERT_TRUE(AppendVisible(nullptr, 5, ranges).ok());
  EXPECT_THAT(ranges, ElementsAre(CellRange{0, 5}));
}

// A range of the token before ends where this one's begins.
TEST(VisibleCells, TokensDoNotShareARange) {
  const std::vector<uint16_t> mask(4, 0);
  std::vector<CellRange> ranges;
  for (int token = 0; token < 2; ++token) ASSERT_TRUE(AppendVisible(mask.data(), 4, ranges).ok());
  EXPECT_THAT(ranges, ElementsAre(CellRange{0, 4}, CellRange{0, 4}));
}

TEST(VisibleCells, OtherValuesAreRefused) {
  for (const uint16_t value : {uint16_t{1}, uint16_t{0x3c00}, uint16_t{0x7c00}, uint16_t{0x7e00}}) {
    for (size_t at = 0; at < 9; ++at) {
      std::vector<uint16_t> mask(9, at % 2 == 0 ? 0 : kHidden);
      mask[at] = value;
      std::vector<CellRange> ranges;
      const absl::Status status = AppendVisible(mask.data(), 9, ranges);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << value << " at " << at;
    }
  }
}

}  // namespace
}  // namespace ckv::ggml
