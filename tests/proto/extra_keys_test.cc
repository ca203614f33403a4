#include "proto/extra_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

namespace ckv {
namespace {

TEST(ExtraKeys, HasOneOrderForAnyInput) {
  const ExtraKeys keys = {{0, 0, "adapter"}, {3, 4, "a"}, {3, 4, "b"}, {3, 5, "a"}, {9, 1, "z"}};
  std::mt19937 rng(1);
  for (int i = 0; i < 20; ++i) {
    ExtraKeys mixed = keys;
    std::shuffle(mixed.begin(), mixed.end(), rng);
    const auto sorted = SortExtraKeys(mixed, 10);
    ASSERT_TRUE(sorted.ok()) << sorted.status();
    EXPECT_EQ(*sorted, keys);
    EXPECT_TRUE(ValidateExtraKeys(*sorted, 10).ok());
  }
  EXPECT_FALSE(ValidateExtraKeys(ExtraKeys{keys[1], keys[0]}, 10).ok());
  EXPECT_FALSE(ValidateExtraKeys(ExtraKeys{keys[1], keys[1]}, 10).ok());
}

TEST(ExtraKeys, RefusesWhatShapesNoToken) {
  const auto refused = [](ExtraKey key, std::string_view why) {
    const absl::Status status = SortExtraKeys({std::move(key)}, 10).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why;
    EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << status;
  };
  refused({10, 1, "d"}, "tokens [10, + 1) are none of the 10");
  refused({-3, 3, "d"}, "are none of");
  refused({INT64_MIN, 1, "d"}, "are none of");
  refused({INT64_MAX, kExtraKeyTokensMax, "d"}, "are none of");
  refused({0, kExtraKeyTokensMax + 1, "d"}, "limit 1073741824");
  refused({1, 0, "d"}, "begins at 0");
  refused({0, 1, ""}, "a digest of 0 bytes");
  refused({0, 1, std::string(65, 'x')}, "a digest of 65 bytes");
  EXPECT_TRUE(SortExtraKeys({{-3, 4, "d"}, {9, 1000, std::string(64, 'x')}}, 10).ok());
  EXPECT_TRUE(SortExtraKeys({{0, 0, "adapter"}}, 0).ok());
  EXPECT_FALSE(SortExtraKeys({{0, 1, "d"}}, 0).ok());
  EXPECT_FALSE(SortExtraKeys({{0, 1, "d"}, {0, 1, "d"}}, 10).ok());
  EXPECT_FALSE(SortExtraKeys(ExtraKeys(kExtraKeysMax + 1, {0, 1, "d"}), 10).ok());
}

TEST(ExtraKeys, AChunkHasThoseThatShapeIt) {
  const ExtraKeys keys = {{0, 0, "adapter"}, {2, 4, "first"}, {4, 4, "second"}, {6, 1, "third"}};
  EXPECT_EQ(ExtraKeysOf(keys, 0, 2), (ExtraKeys{{0, 0, "adapter"}}));
  EXPECT_EQ(ExtraKeysOf(keys, 0, 4), (ExtraKeys{{0, 0, "adapter"}, {2, 4, "first"}}));
  // Spans two chunks: a key of both, each with the position where it began.
  EXPECT_EQ(ExtraKeysOf(keys, 4, 8),
            (ExtraKeys{{-2, 4, "first"}, {0, 0, "adapter"}, {0, 4, "second"}, {2, 1, "third"}}));
  // At the edges: the last token of one, and the first behind another.
  EXPECT_EQ(ExtraKeysOf(keys, 7, 9), (ExtraKeys{{-3, 4, "second"}, {0, 0, "adapter"}}));
  EXPECT_EQ(ExtraKeysOf(keys, 8, 9), (ExtraKeys{{0, 0, "adapter"}}));
}

TEST(ExtraKeys, EncodesAndDecodes) {
  EXPECT_EQ(EncodeExtraKeys({}), "");
  EXPECT_TRUE(DecodeExtraKeys("", 5)->empty());
  const ExtraKeys keys = {{-2, 4, "first"}, {0, 0, std::string(64, '\0')}, {4, 1, "x"}};
  const std::string bytes = EncodeExtraKeys(keys);
  EXPECT_LE(bytes.size(), kExtraKeysBytesMax);
  EXPECT_EQ(*DecodeExtraKeys(bytes, 5), keys);
  // Another chunk's length: the last one shapes none of its tokens.
  EXPECT_FALSE(DecodeExtraKeys(bytes, 4).ok());
}

// Goal: damaged bytes are refused, or are the one encoding of other keys; memory follows the bytes
// and not the counts in them. Method: every prefix, every single bit, and bytes behind the end.
TEST(ExtraKeys, DamageIsRefused) {
  const ExtraKeys keys = {{-2, 4, "first"}, {0, 0, "adapter"}, {4, 1, "x"}};
  const std::string bytes = EncodeExtraKeys(keys);
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeExtraKeys(bytes.substr(0, size), 5).status()))
        << size;
  EXPECT_FALSE(DecodeExtraKeys(bytes + '\0', 5).ok());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto decoded = DecodeExtraKeys(damaged, 5);
    if (!decoded.ok()) continue;
    EXPECT_NE(*decoded, keys);
    EXPECT_EQ(EncodeExtraKeys(*decoded), damaged);
  }
  EXPECT_FALSE(DecodeExtraKeys(std::string(4, '\0'), 5).ok());
  EXPECT_FALSE(DecodeExtraKeys(std::string(4, '\xff'), 5).ok());
}

}  // namespace
}  // namespace ckv
