#include "proto/base/words.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(Words, TheNearestIsOneThatCouldBeMeant) {
  const std::vector<std::string> words = {"np", "sec", "status", "docs", "--directory"};
  EXPECT_EQ(NearestWord("nope", words), "");
  EXPECT_EQ(NearestWord("cc", words), "");
  EXPECT_EQ(NearestWord("dosc", words), "");
  EXPECT_EQ(NearestWord("dcs", words), "docs");
  EXPECT_EQ(NearestWord("stat", words), "status");
  EXPECT_EQ(NearestWord("--directry", words), "--directory");
}

TEST(Words, ALineEndsBeforeTheWordThatWouldNotFit) {
  EXPECT_EQ(WrapWords("one two three", 13), "one two three");
  EXPECT_EQ(WrapWords("one two three", 12), "one two\nthree");
  EXPECT_EQ(WrapWords("one two three", 3), "one\ntwo\nthree");
}

TEST(Words, TheIndentCounts) {
  EXPECT_EQ(WrapWords("one two three", 9, "  "), "one two\n  three");
  EXPECT_EQ(WrapWords("one two three", 8, "  "), "one\n  two\n  three");
}

TEST(Words, LinesStayLinesAndWordsStayWhole) {
  EXPECT_EQ(WrapWords("a longestword b\nc", 6), "a\nlongestword\nb\nc");
  EXPECT_EQ(WrapWords("", 6), "");
  EXPECT_EQ(WrapWords("a  b", 10), "a  b");  // a table's columns stay
}

}  // namespace
}  // namespace ckv
