#include "store/memory/chunk_id.h"

#include <gtest/gtest.h>

#include <set>
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

// Goal: keyed ids never change either, and the zero key gives the ids of before. Method: vectors
// computed without this code, with chunk_id as above:
//
//   def seal(key, plain):
//       return hmac.new(key, plain, hashlib.sha256).digest()
//   def keyed(plain, seal):
//       return hashlib.sha256(struct.pack('<Q', 11) + b'ckv.chunk.2' + plain + seal).hexdigest()
//   plain, key = chunk_id(fingerprint, zero, 0, [1, 2, 3, -1]), bytes(range(100, 132))
TEST(SealedChunkId, GoldenVectors) {
  const std::vector<int32_t> tokens = {1, 2, 3, -1};
  const ChunkId plain = ComputeChunkId(CountingFingerprint(), {}, 0, tokens);
  const ChunkSeal seal = SealOf(plain, CountingKey(100));
  EXPECT_EQ(ChunkId{seal.bytes}.ToHex(),
            "7a64ce454484fed8ef9745b52c924eeb7e029b04889926a97d06a084fa9db1d8");
  EXPECT_EQ(SealedChunkId(plain, seal).ToHex(),
            "d5a9fb1806b3dcbc5b5642f83ba8e98470de9e5fb7be932d2e08bdd0f5631ae1");
  EXPECT_TRUE(SealOf(plain, TenantKey()).IsZero());
  EXPECT_EQ(SealedChunkId(plain, ChunkSeal()), plain);
}

TEST(SealedChunkId, TenantsShareNoId) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const ChunkId plain = ComputeChunkId(CountingFingerprint(), {}, 0, tokens);
  std::set<ChunkId> ids = {plain};
  for (const uint8_t from : {1, 2, 3})
    ids.insert(SealedChunkId(plain, SealOf(plain, CountingKey(from))));
  EXPECT_EQ(ids.size(), 4u);
}

}  // namespace
}  // namespace ckv
