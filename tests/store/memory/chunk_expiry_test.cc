// Goal: a mark ends at its time, a chunk when it was not put again in time, and what was put for
// good stays for good.

#include "store/memory/chunk_expiry.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

constexpr Duration kHour = std::chrono::hours(1);
constexpr Instant kStart = {1'000};

ChunkId Id(uint8_t n) {
  ChunkId id;
  id.bytes[0] = n;
  return id;
}

TEST(ChunkExpiry, AMarkEndsAtItsTime) {
  ChunkExpiry expiry;
  expiry.Keep(Id(1), kStart + kHour);
  expiry.Keep(Id(2), kInstantMax);
  EXPECT_EQ(expiry.size(), 1u);  // what is for good needs no room
  EXPECT_EQ(expiry.NextDue(kStart + kHour - Duration(1)), std::nullopt);
  EXPECT_EQ(expiry.NextDue(kStart + kHour), Id(1));
  expiry.Keep(Id(1), kStart + 2 * kHour);  // the last call counts
  EXPECT_EQ(expiry.NextDue(kStart + kHour), std::nullopt);
  EXPECT_EQ(expiry.NextDue(kStart + 2 * kHour), Id(1));
  expiry.Unkeep(Id(1));
  EXPECT_EQ(expiry.size(), 0u);
  EXPECT_EQ(expiry.NextDue(kInstantMax), std::nullopt);
}

TEST(ChunkExpiry, AChunkEndsIfItIsNotPutAgain) {
  ChunkExpiry expiry;
  expiry.Put(Id(1), kHour, kStart);
  expiry.Put(Id(2), Duration(0), kStart);
  EXPECT_EQ(expiry.size(), 1u);
  EXPECT_FALSE(expiry.PutAgain(Id(1), kHour, kStart + kHour / 2));
  EXPECT_EQ(expiry.NextDue(kStart + kHour), std::nullopt);
  EXPECT_EQ(expiry.NextDue(kStart + kHour * 3 / 2), Id(1));
  // A shorter time does not bring the end nearer.
  EXPECT_FALSE(expiry.PutAgain(Id(1), kHour / 4, kStart + kHour / 2));
  EXPECT_EQ(expiry.Find(Id(1))->ttl, kHour);
  EXPECT_TRUE(expiry.PutAgain(Id(1), 2 * kHour, kStart + kHour / 2));
  EXPECT_EQ(expiry.Find(Id(1))->drop_at, kStart + kHour * 5 / 2);
  // Once for good, always for good.
  EXPECT_TRUE(expiry.PutAgain(Id(1), Duration(0), kStart + kHour));
  EXPECT_FALSE(expiry.PutAgain(Id(1), kHour, kStart + kHour));
  EXPECT_FALSE(expiry.PutAgain(Id(2), kHour, kStart + kHour));
  EXPECT_EQ(expiry.size(), 0u);
}

TEST(ChunkExpiry, AKeptChunkOutlivesItsTimeUntilTheMarkEnds) {
  ChunkExpiry expiry;
  expiry.Put(Id(1), kHour, kStart);
  expiry.Keep(Id(1), kInstantMax);
  EXPECT_EQ(expiry.NextDue(kStart + 2 * kHour), std::nullopt);
  expiry.Keep(Id(1), kStart + 3 * kHour);
  EXPECT_EQ(expiry.NextDue(kStart + 2 * kHour), std::nullopt);
  EXPECT_EQ(expiry.NextDue(kStart + 3 * kHour), Id(1));
  expiry.Unkeep(Id(1));
  EXPECT_EQ(expiry.NextDue(kStart + kHour), Id(1));
  expiry.Forget(Id(1));
  EXPECT_EQ(expiry.NextDue(kInstantMax), std::nullopt);
  EXPECT_EQ(expiry.size(), 0u);
}

}  // namespace
}  // namespace ckv
