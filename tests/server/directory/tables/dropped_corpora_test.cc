// Goal: a drop covers the versions that its folder gave up to then, the dropped version whichever
// folder gave it, and nothing else; there is a limit.

#include "server/directory/tables/dropped_corpora.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using testing::ElementsAre;

TEST(DroppedCorpora, CoverVersionsOfTheirFolder) {
  DroppedCorpora drops(10);
  EXPECT_TRUE(drops.Note({"acme", "a", 1, 50, 51}));
  for (const uint64_t folder : {1, 2}) {
    EXPECT_TRUE(drops.Covers("acme", "a", folder, 50));
    EXPECT_EQ(drops.Covers("acme", "a", folder, 49), folder == 1);
    EXPECT_FALSE(drops.Covers("acme", "a", folder, 51));
  }
  EXPECT_FALSE(drops.Covers("", "a", 1, 50));
  EXPECT_FALSE(drops.Note({"acme", "a", 1, 40, 60})) << "an earlier one is known";
  EXPECT_TRUE(drops.Note({"acme", "a", 1, 70, 71}));
  EXPECT_EQ(drops.size(), 1u);
  EXPECT_TRUE(drops.Covers("acme", "a", 1, 60));
  // A drop of no folder is the operator's, and covers all versions.
  EXPECT_TRUE(drops.Note({"acme", "a", 0, 80, 81}));
  EXPECT_TRUE(drops.Covers("acme", "a", 9, 3));
}

TEST(DroppedCorpora, KeepsTheLatest) {
  DroppedCorpora drops(3);
  for (uint64_t i = 1; i <= 5; ++i) drops.Note({"", std::string(1, char('f' - i)), 1, i, 10 * i});
  EXPECT_EQ(drops.size(), 3u);
  EXPECT_FALSE(drops.Covers("", "d", 1, 2)) << "forgotten, whatever its name";
  const DroppedCorpus third = {"", "c", 1, 3, 30}, fourth = {"", "b", 1, 4, 40},
                      fifth = {"", "a", 1, 5, 50};
  EXPECT_THAT(drops.All(), ElementsAre(third, fourth, fifth));
  EXPECT_THAT(drops.After(30, 10), ElementsAre(fourth, fifth));
  EXPECT_THAT(drops.After(0, 1), ElementsAre(fifth));
}

}  // namespace
}  // namespace ckv
