// Goal: any text becomes UTF-8, and text that is UTF-8 stays as it is.

#include "proto/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace ckv {
namespace {

TEST(Utf8Text, ValidTextStays) {
  for (const char* text : {"", "/var/lib/ckv", "/srv/größe", "/数据/块", "/\xf0\x9f\x98\x80"})
    EXPECT_EQ(Utf8Text(text, 100), text);
}

TEST(Utf8Text, ReplacesBytesThatAreNoText) {
  EXPECT_EQ(Utf8Text("/data/\xff/new", 100), "/data/?/new");
  EXPECT_EQ(Utf8Text("latin gr\xf6\xdf"
                     "e",
                     100),
            "latin gr??e");
  EXPECT_EQ(Utf8Text("\xc0\xaf", 100), "??") << "too long for what it says";
  EXPECT_EQ(Utf8Text("\xed\xa0\x80", 100), "???") << "half of a pair";
  EXPECT_EQ(Utf8Text("\xf4\x90\x80\x80", 100), "????") << "beyond the last character";
  EXPECT_EQ(Utf8Text("\xe2\x82", 100), "??") << "cut";
}

TEST(Utf8Text, ACutKeepsCharactersWhole) {
  const std::string text = "a\xc3\xb6\xe5\x9d\x97";
  const size_t kept[] = {0, 1, 1, 3, 3, 3, 6};
  for (size_t max = 0; max <= text.size(); ++max)
    EXPECT_EQ(Utf8Text(text, max), text.substr(0, kept[max])) << max;
}

TEST(Utf8Text, RandomBytesBecomeTextThatStays) {
  std::mt19937 random(7);
  for (int i = 0; i < 10'000; ++i) {
    std::string bytes(random() % 24, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const std::string text = Utf8Text(bytes, 20);
    EXPECT_LE(text.size(), 20u);
    for (std::string_view rest = text; !rest.empty();) {
      const Utf8Character character = FirstCharacterOf(rest);
      ASSERT_TRUE(character.valid) << i;
      rest.remove_prefix(character.byte_count);
    }
  }
}

}  // namespace
}  // namespace ckv
