#include "store/memory/token_hash.h"

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

// Goal: token hashes never change: they are published. Method: vectors computed without this code:
//
//   import hashlib, struct
//   p = 2**61 - 1
//   def base(key):
//       digest = hashlib.sha256(struct.pack('<Q', 11) + b'ckv.print.1' + key).digest()
//       return 2 + int.from_bytes(digest[:8], 'little') % (p - 2)
//   def of(tokens, key):
//       return sum((t % 2**32 + 1) * pow(base(key), len(tokens) - 1 - i, p)
//                  for i, t in enumerate(tokens)) % p
TEST(TokenHashOf, GoldenVectors) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 20; ++i) tokens.push_back(i * 1000 - 1);
  // of(tokens[:16], bytes(32)), of(tokens, bytes(32))
  EXPECT_EQ(TokenHashOf(tokens, {}),
            (TokenHash{.head = 975760241020431913u, .whole = 1641968368307055595u}));
  TenantKey key;
  key.bytes.fill(7);
  // of(tokens[:16], bytes([7] * 32)), of(tokens, bytes([7] * 32))
  EXPECT_EQ(TokenHashOf(tokens, key),
            (TokenHash{.head = 182055884553836355u, .whole = 86518642785304603u}));
}

// The same with extra keys:
//
//   def line(key, n, d):
//       h = hashlib.sha256(struct.pack('<Q', 11) + b'ckv.print.2' + key + struct.pack('<I', n) + d)
//       return [int.from_bytes(h.digest()[i:i + 8], 'little') % p for i in (0, 8)]
//   and t % 2**32 + 1 + the sum of a + (i - begin) * b of the keys that shape i (a alone if n = 0)
TEST(TokenHashOf, GoldenVectorsWithExtraKeys) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 20; ++i) tokens.push_back(i);
  const ExtraKeys keys = {{-2, 5, "first"}, {0, 0, "adapter"}, {10, 4, "second"}};
  EXPECT_EQ(TokenHashOf(tokens, {}, keys),
            (TokenHash{.head = 0x8d436cf07afd71f, .whole = 0x1b0109b9de81455a}));
  TenantKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(100 + i);
  EXPECT_EQ(TokenHashOf(tokens, key, keys),
            (TokenHash{.head = 0x1848800105bd2485, .whole = 0x16baeeebcb178fed}));
}

// A range of a prompt has the token hash of the chunk that has its tokens and its extra keys.
TEST(TokenHashes, EveryRunHasThePrintOfItsExtraKeys) {
  const std::vector<int32_t> tokens = RandomTokens(60, 4);
  const ExtraKeys keys = *SortExtraKeys(
      {{0, 0, "adapter"}, {-3, 20, "a"}, {10, 8, "b"}, {18, 8, "b"}, {18, 30, "c"}, {59, 400, "d"}},
      tokens.size());
  const TokenHashes token_hashes(tokens, {}, keys);
  const std::vector<uint64_t> heads = token_hashes.Heads();
  for (size_t begin = 0; begin < heads.size(); ++begin) {
    for (size_t end = begin + kHeadTokens; end <= tokens.size(); ++end) {
      const auto part = std::span(tokens).subspan(begin, end - begin);
      const TokenHash token_hash = TokenHashOf(part, {}, ExtraKeysOf(keys, begin, end));
      ASSERT_EQ(heads[begin], token_hash.head) << begin;
      ASSERT_EQ(token_hashes.Of(begin, end), token_hash.whole) << begin << " to " << end;
      ASSERT_NE(token_hash.whole, TokenHashOf(part, {}).whole);
    }
  }
}

TEST(TokenHashOf, ShortChunksHaveNone) {
  const std::vector<int32_t> tokens = RandomTokens(kHeadTokens, 1);
  EXPECT_EQ(TokenHashOf(std::span(tokens).first(kHeadTokens - 1), {}), TokenHash());
  const TokenHash one = TokenHashOf(tokens, {});
  EXPECT_NE(one.head, 0u);
  EXPECT_EQ(one.head, one.whole);
}

// A range has the same token hash wherever it is in the prompt.
TEST(TokenHashes, EveryRunHasThePrintOfItsTokens) {
  TenantKey key;
  key.bytes[3] = 9;
  const std::vector<int32_t> tokens = RandomTokens(80, 2);
  const TokenHashes token_hashes(tokens, key);
  const std::vector<uint64_t> heads = token_hashes.Heads();
  ASSERT_EQ(heads.size(), 80 - kHeadTokens + 1);
  for (size_t begin = 0; begin < heads.size(); ++begin) {
    for (size_t end = begin + kHeadTokens; end <= tokens.size(); ++end) {
      const TokenHash token_hash = TokenHashOf(std::span(tokens).subspan(begin, end - begin), key);
      ASSERT_EQ(heads[begin], token_hash.head);
      ASSERT_EQ(token_hashes.Of(begin, end), token_hash.whole);
    }
  }
}

TEST(TokenHashes, KeysAndTokensDistinguishPrints) {
  std::set<uint64_t> wholes;
  for (uint8_t k = 0; k < 4; ++k) {
    TenantKey key;
    key.bytes[0] = k;
    for (int32_t last = 0; last < 4; ++last) {
      std::vector<int32_t> tokens(40, 0);
      tokens.back() = last;
      wholes.insert(TokenHashOf(tokens, key).whole);
    }
  }
  EXPECT_EQ(wholes.size(), 16u);
}

TEST(TokenHashes, FewTokensHaveNoHeads) {
  EXPECT_TRUE(TokenHashes({}, {}).Heads().empty());
  EXPECT_TRUE(TokenHashes(RandomTokens(kHeadTokens - 1, 3), {}).Heads().empty());
}

}  // namespace
}  // namespace ckv
