// Goal: the local row cache keeps within its room, counts what is still attended, and publishes
// whole chunks only. Method: chunks of a small geometry, filled by hand.

#include "client/prefetch/local_row_cache.h"

#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

ChunkId Id(uint8_t n) {
  ChunkId id;
  id.bytes[0] = n;
  return id;
}

class LocalRowCacheTest : public testing::Test {
 protected:
  static constexpr uint32_t kTokens = 10;
  const Geometry geometry_ = test::TestGeometry();
  const uint64_t bytes_ = LocalRowCache::BytesOf(geometry_, kTokens);
  LocalRowCache store_{2 * bytes_};

  bool Put(uint8_t n) {
    auto fill = store_.Begin(Id(n), geometry_, kTokens);
    if (!fill.ok()) return false;
    for (uint32_t l = 0; l < geometry_.layers; ++l)
      std::memset(fill->tensor(l).data(), n + int(l), fill->tensor(l).size());
    store_.Commit(*std::move(fill));
    return true;
  }
};

TEST_F(LocalRowCacheTest, FindsWhatWasPut) {
  EXPECT_EQ(store_.Find(Id(1), geometry_), nullptr);
  ASSERT_TRUE(Put(1));
  const auto rows = store_.Find(Id(1), geometry_);
  ASSERT_NE(rows, nullptr);
  for (uint32_t l = 0; l < geometry_.layers; ++l) {
    EXPECT_EQ(rows->layer(l).size(), kTokens * geometry_.row_bytes());
    EXPECT_EQ(uint8_t(rows->layer(l).back()), 1 + l);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(rows->layer(l).data()) % 64, 0u);
  }
  Geometry other = geometry_;
  other.layers += 1;
  EXPECT_EQ(store_.Find(Id(1), other), nullptr) << "rows of another model";
}

TEST_F(LocalRowCacheTest, KeepsWithinItsRoom) {
  EXPECT_TRUE(Put(1) && Put(2));
  EXPECT_EQ(store_.used_bytes(), 2 * bytes_);
  const auto third = store_.Begin(Id(3), geometry_, kTokens);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted) << third.status();
  store_.Release(Id(1));
  EXPECT_TRUE(Put(3));
  EXPECT_EQ(store_.chunk_count(), 2u);
}

TEST_F(LocalRowCacheTest, CountsRowsInUseUntilTheyAreReleased) {
  ASSERT_TRUE(Put(1) && Put(2));
  auto rows = store_.Find(Id(1), geometry_);
  store_.Release(Id(1));
  EXPECT_EQ(store_.Find(Id(1), geometry_), nullptr);
  EXPECT_EQ(uint8_t(rows->layer(0)[0]), 1) << "a call goes on with them";
  EXPECT_FALSE(Put(3));
  rows.reset();
  EXPECT_TRUE(Put(3));
}

TEST_F(LocalRowCacheTest, AnAbandonedRunReturnsItsRoom) {
  { const auto fill = store_.Begin(Id(1), geometry_, kTokens); }
  EXPECT_EQ(store_.used_bytes(), 0u);
  EXPECT_EQ(store_.Find(Id(1), geometry_), nullptr) << "half a chunk was never there";
}

TEST_F(LocalRowCacheTest, AChunkOfTwoRunsStaysForTheOther) {
  ASSERT_TRUE(Put(1));
  EXPECT_TRUE(store_.Hold(Id(1), geometry_));
  EXPECT_FALSE(store_.Hold(Id(2), geometry_));
  store_.Release(Id(1));
  EXPECT_NE(store_.Find(Id(1), geometry_), nullptr);
  store_.Release(Id(1));
  EXPECT_EQ(store_.Find(Id(1), geometry_), nullptr);
  store_.Release(Id(1));  // nothing is there any more
}

TEST_F(LocalRowCacheTest, RowsMayOutliveTheStore) {
  std::shared_ptr<const LocalRows> rows;
  {
    LocalRowCache store(bytes_);
    auto fill = store.Begin(Id(1), geometry_, kTokens);
    ASSERT_TRUE(fill.ok());
    store.Commit(*std::move(fill));
    rows = store.Find(Id(1), geometry_);
  }
  EXPECT_EQ(uint8_t(rows->layer(0)[0]), 0);
}

TEST_F(LocalRowCacheTest, ThreadsTakeNoMoreThanThereIs) {
  std::vector<std::thread> threads;
  for (uint8_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 200; ++i) {
        if (Put(t)) store_.Release(Id(t));
        EXPECT_LE(store_.used_bytes(), 2 * bytes_);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_.used_bytes(), 0u);
}

class Elsewhere final : public LocalRows {
 public:
  std::span<const std::byte> tensor(uint32_t) const override { return bytes; }
  std::vector<std::byte> bytes = std::vector<std::byte>(7);
};

TEST_F(LocalRowCacheTest, AdoptsRowsInOtherMemory) {
  const auto rows = std::make_shared<Elsewhere>();
  ASSERT_TRUE(store_.Adopt(Id(1), geometry_, rows, /*bytes=*/bytes_).ok());
  EXPECT_EQ(store_.used_bytes(), bytes_);
  EXPECT_EQ(store_.Find(Id(1), geometry_)->layer(0).data(), rows->bytes.data());
  // Rows that do not fit are refused and leave nothing behind.
  EXPECT_EQ(store_.Adopt(Id(2), geometry_, rows, 2 * bytes_).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_.used_bytes(), bytes_);
  EXPECT_EQ(store_.Find(Id(2), geometry_), nullptr);
  // A second of the same chunk takes no more room, and its rows are not used.
  ASSERT_TRUE(store_.Adopt(Id(1), geometry_, std::make_shared<Elsewhere>(), 0).ok());
  EXPECT_EQ(store_.Find(Id(1), geometry_)->layer(0).data(), rows->bytes.data());
  store_.Release(Id(1));
  EXPECT_NE(store_.Find(Id(1), geometry_), nullptr) << "it was adopted twice";
  store_.Release(Id(1));
  EXPECT_EQ(store_.Find(Id(1), geometry_), nullptr);
  EXPECT_EQ(store_.used_bytes(), 0u);
  EXPECT_EQ(rows.use_count(), 1);
}

TEST_F(LocalRowCacheTest, ReportsWhatAReleaseWouldFree) {
  ASSERT_TRUE(Put(1) && Put(2) && store_.Hold(Id(2), geometry_));
  const std::vector<ChunkId> ids = {Id(1), Id(2), Id(3)};
  EXPECT_EQ(store_.BytesHeldOnce(ids), bytes_) << "the second is held twice";
  store_.Release(Id(2));
  EXPECT_EQ(store_.BytesHeldOnce(ids), 2 * bytes_);
}

}  // namespace
}  // namespace ckv
