// Goal: a number is in a gap if no life of the folder can have given it.

#include "server/directory/tables/version_gaps.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(VersionGaps, ContainTheVersionsThatWereSkipped) {
  VersionGaps gaps;
  EXPECT_FALSE(gaps.Has(1));
  gaps.Add({0, 100});
  gaps.Add({110, 200});
  gaps.Add({150, 300});  // a life that gave nothing
  gaps.Add({310, 310});  // no gap
  gaps.Add({310, 320});
  EXPECT_EQ(gaps.all(), (std::vector<VersionGap>{{0, 100}, {110, 300}, {310, 320}}));
  for (uint64_t number = 1; number < 400; ++number) {
    const bool in =
        number <= 100 || (number > 110 && number <= 300) || (number > 310 && number <= 320);
    EXPECT_EQ(gaps.Has(number), in) << number;
  }
}

TEST(VersionGaps, HaveALimit) {
  VersionGaps gaps;
  for (uint64_t i = 0; i <= VersionGaps::kCountMax; ++i) gaps.Add({10 * i, 10 * i + 5});
  EXPECT_EQ(gaps.all().size(), VersionGaps::kCountMax);
  EXPECT_FALSE(gaps.Has(3)) << "the first is forgotten";
  EXPECT_TRUE(gaps.Has(13));
}

}  // namespace
}  // namespace ckv
