#include "store/memory/token_print.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace ckv {
namespace {

std::vector<int32_t> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() >> 1);
  return tokens;
}

// Goal: prints never change, since they are published. Method: vectors computed without this code:
//
//   import hashlib, struct
//   p = 2**61 - 1
//   def base(key):
//       digest = hashlib.sha256(struct.pack('<Q', 11) + b'ckv.print.1' + key).digest()
//       return 2 + int.from_bytes(digest[:8], 'little') % (p - 2)
//   def of(tokens, key):
//       return sum((t % 2**32 + 1) * pow(base(key), len(tokens) - 1 - i, p)
//                  for i, t in enumerate(tokens)) % p
TEST(PrintOf, GoldenVectors) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 20; ++i) tokens.push_back(i * 1000 - 1);
  // of(tokens[:16], bytes(32)), of(tokens, bytes(32))
  EXPECT_EQ(PrintOf(tokens, {}),
            (TokenPrint{.head = 975760241020431913u, .whole = 1641968368307055595u}));
  TenantKey key;
  key.bytes.fill(7);
  // of(tokens[:16], bytes([7] * 32)), of(tokens, bytes([7] * 32))
  EXPECT_EQ(PrintOf(tokens, key),
            (TokenPrint{.head = 182055884553836355u, .whole = 86518642785304603u}));
}

TEST(PrintOf, ShortChunksHaveNone) {
  const std::vector<int32_t> tokens = RandomTokens(kHeadTokens, 1);
  EXPECT_EQ(PrintOf(std::span(tokens).first(kHeadTokens - 1), {}), TokenPrint());
  const TokenPrint one = PrintOf(tokens, {});
  EXPECT_NE(one.head, 0u);
  EXPECT_EQ(one.head, one.whole);
}

// A run has the same print wherever it stands.
TEST(TokenPrints, EveryRunHasThePrintOfItsTokens) {
  TenantKey key;
  key.bytes[3] = 9;
  const std::vector<int32_t> tokens = RandomTokens(80, 2);
  const TokenPrints prints(tokens, key);
  const std::vector<uint64_t> heads = prints.Heads();
  ASSERT_EQ(heads.size(), 80 - kHeadTokens + 1);
  for (size_t begin = 0; begin < heads.size(); ++begin) {
    for (size_t end = begin + kHeadTokens; end <= tokens.size(); ++end) {
      const TokenPrint print = PrintOf(std::span(tokens).subspan(begin, end - begin), key);
      ASSERT_EQ(heads[begin], print.head);
      ASSERT_EQ(prints.Of(begin, end), print.whole);
    }
  }
}

TEST(TokenPrints, KeysAndTokensTellApart) {
  std::set<uint64_t> wholes;
  for (uint8_t k = 0; k < 4; ++k) {
    TenantKey key;
    key.bytes[0] = k;
    for (int32_t last = 0; last < 4; ++last) {
      std::vector<int32_t> tokens(40, 0);
      tokens.back() = last;
      wholes.insert(PrintOf(tokens, key).whole);
    }
  }
  EXPECT_EQ(wholes.size(), 16u);
}

TEST(TokenPrints, FewTokensHaveNoHeads) {
  EXPECT_TRUE(TokenPrints({}, {}).Heads().empty());
  EXPECT_TRUE(TokenPrints(RandomTokens(kHeadTokens - 1, 3), {}).Heads().empty());
}

}  // namespace
}  // namespace ckv
