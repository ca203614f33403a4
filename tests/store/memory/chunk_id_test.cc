#include "store/memory/chunk_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace ckv {
namespace {

ChunkId CountingFingerprint() {
  ChunkId id;
  for (size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<uint8_t>(i);
  return id;
}

// Goal: ids never change, since they name stored chunks. Method: vectors computed without this
// code:
//
//   import hashlib, struct
//   def chunk_id(fingerprint, parent, position, tokens):
//       return hashlib.sha256(struct.pack('<Q', 11) + b'ckv.chunk.1' + fingerprint + parent
//           + struct.pack('<QQ', position, len(tokens))
//           + b''.join(struct.pack('<i', t) for t in tokens)).hexdigest()
//   fingerprint, zero = bytes(range(32)), bytes(32)
TEST(ComputeChunkId, GoldenVectors) {
  const ChunkId fingerprint = CountingFingerprint();
  const std::vector<int32_t> tokens = {1, 2, 3, -1};
  // chunk_id(fingerprint, zero, 0, [])
  EXPECT_EQ(ComputeChunkId(fingerprint, {}, 0, {}).ToHex(),
            "a37345c21423bec70c9e649121d9f01d24bc331f28de12dfb0055388792bbe6a");
  // chunk_id(fingerprint, zero, 0, [1, 2, 3, -1])
  const ChunkId first = ComputeChunkId(fingerprint, {}, 0, tokens);
  EXPECT_EQ(first.ToHex(), "bbdb74896da55a22eb8aa0534e4bbaf5fdfbb60a00144b47f53b4069b51daecf");
  // chunk_id(fingerprint, zero, 4096, [1, 2, 3, -1])
  EXPECT_EQ(ComputeChunkId(fingerprint, {}, 4096, tokens).ToHex(),
            "23a4b1a8c6b3694b0ea2cc4122b1b1833787743d8f2d0952034334506d83712b");
  // chunk_id(fingerprint, first, 4, [2147483647])
  const std::vector<int32_t> child = {INT32_MAX};
  EXPECT_EQ(ComputeChunkId(fingerprint, first, 4, child).ToHex(),
            "23299952d2a05bb02f438b67effd03397ebe695abfa02451381431bc9a0e795f");
}

TEST(ComputeChunkId, EveryInputCounts) {
  const ChunkId fingerprint = CountingFingerprint();
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<int32_t> swapped = {2, 1, 3};
  std::set<ChunkId> ids;
  ids.insert(ComputeChunkId(fingerprint, {}, 0, tokens));
  ids.insert(ComputeChunkId({}, {}, 0, tokens));
  ids.insert(ComputeChunkId(fingerprint, fingerprint, 0, tokens));
  ids.insert(ComputeChunkId({}, fingerprint, 0, tokens));
  ids.insert(ComputeChunkId(fingerprint, {}, 1, tokens));
  ids.insert(ComputeChunkId(fingerprint, {}, 0, swapped));
  ids.insert(ComputeChunkId(fingerprint, {}, 0, std::span(tokens).first(2)));
  EXPECT_EQ(ids.size(), 7u);
}

TenantKey CountingKey(uint8_t from) {
  TenantKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(from + i);
  return key;
}

// Goal: keyed ids never change either, and the zero key gives the unkeyed ids. Method: vectors
// computed without this code, with chunk_id as above:
//
//   def seal(key, plain):
//       return hmac.new(key, plain, hashlib.sha256).digest()
//   def keyed(plain, seal):
//       return hashlib.sha256(struct.pack('<Q', 11) + b'ckv.chunk.2' + plain + seal).hexdigest()
//   plain, key = chunk_id(fingerprint, zero, 0, [1, 2, 3, -1]), bytes(range(100, 132))
TEST(TaggedChunkId, GoldenVectors) {
  const std::vector<int32_t> tokens = {1, 2, 3, -1};
  const ChunkId plain = ComputeChunkId(CountingFingerprint(), {}, 0, tokens);
  const VerificationTag verification_tag = VerificationTagOf(plain, CountingKey(100));
  EXPECT_EQ(ChunkId{verification_tag.bytes}.ToHex(),
            "7a64ce454484fed8ef9745b52c924eeb7e029b04889926a97d06a084fa9db1d8");
  EXPECT_EQ(TaggedChunkId(plain, verification_tag).ToHex(),
            "d5a9fb1806b3dcbc5b5642f83ba8e98470de9e5fb7be932d2e08bdd0f5631ae1");
  EXPECT_TRUE(VerificationTagOf(plain, TenantKey()).IsZero());
  EXPECT_EQ(TaggedChunkId(plain, VerificationTag()), plain);
}

// Goal: ids with extra keys never change either. Method: as above, with
//
//   def encoded(keys):  # (begin, token_count, digest)
//       return struct.pack('<I', len(keys)) + b''.join(
//           struct.pack('<qIB', b, n, len(d)) + d for b, n, d in sorted(keys))
//   chunk_id(..., keys) is that of above, with b'ckv.chunk.3', and encoded(keys) behind the tokens
TEST(ComputeChunkId, GoldenVectorsWithExtraKeys) {
  const ChunkId fingerprint = CountingFingerprint();
  const std::vector<int32_t> tokens = {1, 2, 3, -1};
  // chunk_id(fingerprint, zero, 0, [1, 2, 3, -1], [(1, 2, b'picture')])
  const ExtraKeys one = {{1, 2, "picture"}};
  const ChunkId first = ComputeChunkId(fingerprint, {}, 0, tokens, one);
  EXPECT_EQ(first.ToHex(), "bbe0fa110db312af7e75fb5ba6742a626338c7daa7ed8a992afd010bef798047");
  // [(1, 2, b'picture'), (-3, 4, b'\0\xff'), (0, 0, b'adapter')]
  const ExtraKeys three = {{-3, 4, std::string("\0\xff", 2)}, {0, 0, "adapter"}, {1, 2, "picture"}};
  EXPECT_EQ(ComputeChunkId(fingerprint, {}, 0, tokens, three).ToHex(),
            "7287a9407f079cb82b881538c273bc5bc1d689115a1284679ae36d6b2aabd813");
  // A chunk of text behind it: chunk_id(fingerprint, first, 4, [7])
  const std::vector<int32_t> child = {7};
  EXPECT_EQ(ComputeChunkId(fingerprint, first, 4, child).ToHex(),
            "63ee68993833f2febc3bc6dd3f5176d86b684673625014efbb0c80eec7fbb4d3");
  // keyed(first, seal(bytes(range(100, 132)), first))
  EXPECT_EQ(TaggedChunkId(first, VerificationTagOf(first, CountingKey(100))).ToHex(),
            "a40598008575a07f6b21ee935b80f9a389fb1f814809bf184420addf2c33c4dd");
}

// Goal: chunks have one id if their tokens and what shapes them are the same, and only then.
// Method: 10,000 cases of few tokens, pictures and places, so that equal ones occur. The model is
// plain: for each token, the list of what shapes it, with the token's offset in that.
TEST(ComputeChunkId, EqualInputsHaveOneId) {
  using Shape = std::tuple<std::string, uint32_t, int64_t>;  // digest, length, tokens before
  using Inputs = std::vector<std::pair<int32_t, std::vector<Shape>>>;
  std::mt19937 rng(3);
  std::map<Inputs, ChunkId> ids;
  std::map<ChunkId, Inputs> inputs;
  int repeated = 0;
  for (int round = 0; round < 10000; ++round) {
    // A sequence of 6 tokens with up to 2 keys, and a chunk of it.
    std::vector<int32_t> tokens(6);
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 2);
    ExtraKeys keys;
    for (uint32_t i = rng() % 3; i > 0; --i) {
      const std::string digest(1, rng() % 2 == 0 ? 'a' : 'b');
      if (rng() % 5 == 0) {
        keys.push_back({0, 0, digest});
      } else {
        keys.push_back(
            {static_cast<int64_t>(rng() % 5) - 1, static_cast<uint32_t>(2 + rng() % 2), digest});
      }
    }
    const auto sorted = SortExtraKeys(keys, tokens.size());
    if (!sorted.ok()) continue;  // one twice
    const uint32_t begin = rng() % 4, end = begin + 1 + rng() % 3;
    const auto part = std::span(tokens).subspan(begin, std::min<size_t>(end, 6) - begin);
    Inputs is;
    for (size_t i = 0; i < part.size(); ++i) {
      std::vector<Shape> shapes;
      for (const ExtraKey& key : *sorted) {
        const int64_t at = static_cast<int64_t>(begin + i) - key.begin;
        if (key.token_count == 0) shapes.push_back({key.digest, 0, 0});
        if (at >= 0 && at < int64_t{key.token_count})
          shapes.push_back({key.digest, key.token_count, at});
      }
      std::sort(shapes.begin(), shapes.end());
      is.push_back({part[i], shapes});
    }
    const ChunkId id = ComputeChunkId(CountingFingerprint(), {}, 0, part,
                                      ExtraKeysOf(*sorted, begin, begin + part.size()));
    const auto [at, is_new] = ids.emplace(is, id);
    repeated += is_new ? 0 : 1;
    ASSERT_EQ(at->second, id) << "round " << round;
    ASSERT_EQ(inputs.emplace(id, is).first->second, is) << "round " << round;
  }
  EXPECT_GT(repeated, 1000);
  EXPECT_GT(ids.size(), 500u);
}

TEST(TaggedChunkId, TenantsShareNoId) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const ChunkId plain = ComputeChunkId(CountingFingerprint(), {}, 0, tokens);
  std::set<ChunkId> ids = {plain};
  for (const uint8_t from : {1, 2, 3})
    ids.insert(TaggedChunkId(plain, VerificationTagOf(plain, CountingKey(from))));
  EXPECT_EQ(ids.size(), 4u);
}

}  // namespace
}  // namespace ckv
