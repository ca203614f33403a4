#include "proto/ids.h"

#include <gtest/gtest.h>

#include "absl/container/flat_hash_set.h"

namespace ckv {
namespace {

ChunkId Counting() {
  ChunkId id;
  for (size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<uint8_t>(i * 8 + 7);
  return id;
}

TEST(ChunkId, HexBothWays) {
  const ChunkId id = Counting();
  EXPECT_EQ(id.ToHex(), "070f171f272f373f474f575f676f777f878f979fa7afb7bfc7cfd7dfe7eff7ff");
  EXPECT_EQ(id.ShortHex(), "070f171f272f");
  EXPECT_EQ(*ChunkId::FromHex(id.ToHex()), id);
  EXPECT_EQ(*ChunkId::FromHex("070F171F272F373F474F575F676F777F878F979FA7AFB7BFC7CFD7DFE7EFF7FF"),
            id);
}

TEST(ChunkId, RefusesWhatIsNotHex) {
  const std::string good = Counting().ToHex();
  EXPECT_FALSE(ChunkId::FromHex("").ok());
  EXPECT_FALSE(ChunkId::FromHex(good.substr(1)).ok());
  EXPECT_FALSE(ChunkId::FromHex(good + "0").ok());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char wrong : {'g', 'G', '/', ':', '@', '`', ' ', '\0', '\xff'}) {
      std::string bad = good;
      bad[i] = wrong;
      EXPECT_EQ(ChunkId::FromHex(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
    }
  }
}

TEST(TenantKey, TakesBytesOfItsLength) {
  const ChunkId id = Counting();
  const auto key = TenantKey::FromBytes(id.AsBytes());
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->AsBytes(), id.AsBytes());
  EXPECT_FALSE(key->IsZero());
  EXPECT_TRUE(TenantKey().IsZero());
  EXPECT_FALSE(TenantKey::FromBytes("").ok());
  EXPECT_FALSE(TenantKey::FromBytes(id.AsBytes().substr(1)).ok());
}

TEST(VerificationTag, NoBytesAreTheZeroSeal) {
  const ChunkId id = Counting();
  EXPECT_EQ(VerificationTag::FromBytes(id.AsBytes())->AsBytes(), id.AsBytes());
  EXPECT_TRUE(VerificationTag::FromBytes("")->IsZero());
  EXPECT_EQ(VerificationTag().AsBytes(), "");
  EXPECT_FALSE(VerificationTag::FromBytes(id.AsBytes().substr(1)).ok());
}

TEST(ChunkId, BytesBothWays) {
  const ChunkId id = Counting();
  EXPECT_EQ(*ChunkId::FromBytes(id.AsBytes()), id);
  EXPECT_FALSE(ChunkId::FromBytes(id.AsBytes().substr(1)).ok());
  EXPECT_FALSE(ChunkId::FromBytes(std::string(33, 'x')).ok());
  EXPECT_FALSE(ChunkId::FromBytes("").ok());
}

TEST(ChunkId, ZeroIsOnlyTheZeroId) {
  EXPECT_TRUE(ChunkId().IsZero());
  for (size_t i = 0; i < 32; ++i) {
    ChunkId id;
    id.bytes[i] = 1;
    EXPECT_FALSE(id.IsZero()) << i;
  }
}

// Equality takes all bytes, though the hash takes eight.
TEST(ChunkId, IdsThatHashAlikeAreTwo) {
  ChunkId other = Counting();
  other.bytes[31] ^= 1;
  const absl::flat_hash_set<ChunkId> ids = {Counting(), other, Counting()};
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_LT(other, Counting());
}

TEST(HolderId, HashesByName) {
  const absl::flat_hash_set<HolderId> ids = {{"a"}, {"b"}, {"a"}};
  EXPECT_EQ(ids.size(), 2u);
}

}  // namespace
}  // namespace ckv
