// Goal: what was put or kept for a time ends when that is over, with its file, and across restarts,
// too; what was put for good, or again, does not.
// Method: a store on a ManualClock, opened again on its folder.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/chunk_store.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

constexpr Duration kAnHour = std::chrono::hours(1);

class ChunkTimesTest : public testing::TestWithParam<bool> {
 protected:
  ChunkTimesTest() {
    static int count = 0;
    options_.capacity_bytes = 1 << 20;
    options_.clock = &clock_;
    if (GetParam()) options_.path = test::TempPath(absl::StrCat("times", count++));
    Open();
  }
  void Open() {
    store_.reset();
    store_ = *ChunkStore::Open(options_);
  }
  // Puts as a holder's service does.
  absl::Status Put(const SmallChunk& chunk, Duration ttl) {
    auto put = store_->Begin(chunk.info, geometry_);
    if (absl::IsAlreadyExists(put.status())) return store_->PutAgain(chunk.info.id, ttl);
    CKV_RETURN_IF_ERROR(put.status());
    put->set_ttl(ttl);
    for (uint32_t l = 0; l < geometry_.layers; ++l)
      CKV_RETURN_IF_ERROR(put->Write(l, 0, chunk.layers[l]));
    return (*std::move(put)).Finish();
  }
  bool Has(const SmallChunk& chunk) { return store_->table().Contains(chunk.info.id); }
  bool HasFile(const SmallChunk& chunk) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.path)) {
      if (entry.path().filename().string().starts_with(chunk.info.id.ToHex())) return true;
    }
    return false;
  }
  SmallChunk Chunk(uint32_t seed) { return MakeSmallChunk(geometry_, 5, seed); }

  const Geometry geometry_ = SmallGeometry();
  ManualClock clock_;
  ChunkStoreOptions options_;
  std::unique_ptr<ChunkStore> store_;
};

TEST_P(ChunkTimesTest, AChunkEndsIfItIsNotPutAgain) {
  const SmallChunk once = Chunk(1), again = Chunk(2), stays = Chunk(3), lifted = Chunk(4);
  ASSERT_TRUE(Put(once, kAnHour).ok());
  ASSERT_TRUE(Put(again, kAnHour).ok());
  ASSERT_TRUE(Put(stays, Duration(0)).ok());
  ASSERT_TRUE(Put(stays, kAnHour).ok());  // a permanent chunk stays permanent
  ASSERT_TRUE(Put(lifted, kAnHour).ok());
  clock_.Advance(kAnHour / 2);
  EXPECT_EQ(store_->Expire(10), 0u);
  ASSERT_TRUE(Put(again, kAnHour).ok());
  ASSERT_TRUE(Put(lifted, Duration(0)).ok());
  clock_.Advance(kAnHour / 2);
  EXPECT_EQ(store_->Expire(10), 1u);
  EXPECT_FALSE(Has(once));
  EXPECT_TRUE(Has(again) && Has(stays) && Has(lifted));
  if (GetParam()) {
    EXPECT_FALSE(HasFile(once));
    EXPECT_TRUE(HasFile(again));
  }
  // A query is no put.
  EXPECT_TRUE(store_->Touch(again.info.id));
  clock_.Advance(kAnHour / 2);
  EXPECT_EQ(store_->Expire(10), 1u);
  EXPECT_FALSE(Has(again));
  clock_.Advance(100 * kAnHour);
  EXPECT_EQ(store_->Expire(10), 0u);
  EXPECT_TRUE(Has(stays) && Has(lifted));
  // It may be put again, for good.
  ASSERT_TRUE(Put(once, Duration(0)).ok());
  clock_.Advance(100 * kAnHour);
  EXPECT_EQ(store_->Expire(10), 0u);
}

TEST_P(ChunkTimesTest, ATickDropsSoManyAndTheNextTheRest) {
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(Put(Chunk(i), kAnHour).ok());
  clock_.Advance(kAnHour);
  EXPECT_EQ(store_->Expire(3), 3u);
  EXPECT_EQ(store_->stats().table.chunk_count, 2u);
  EXPECT_EQ(store_->Expire(3), 2u);
  EXPECT_EQ(store_->Expire(3), 0u);
}

// Goal: a request that reads the chunk continues; the memory is freed when the request has ended.
TEST_P(ChunkTimesTest, FreesReadRowsAfterARequest) {
  const SmallChunk chunk = Chunk(1);
  ASSERT_TRUE(Put(chunk, kAnHour).ok());
  {
    const auto pin = store_->table().Pin(chunk.info.id, geometry_);
    ASSERT_TRUE(pin.ok());
    clock_.Advance(kAnHour);
    EXPECT_EQ(store_->Expire(10), 1u);
    EXPECT_FALSE(Has(chunk));
    EXPECT_TRUE(
        std::equal(chunk.layers[1].begin(), chunk.layers[1].end(), pin->chunk().layer(1).begin()));
    EXPECT_GT(store_->stats().table.used_bytes, 0u);
  }
  EXPECT_EQ(store_->stats().table.used_bytes, 0u);
}

TEST_P(ChunkTimesTest, AMarkEndsAndThenTheChunkMayEnd) {
  const SmallChunk marked = Chunk(1), both = Chunk(2);
  ASSERT_TRUE(Put(marked, Duration(0)).ok());
  ASSERT_TRUE(Put(both, kAnHour).ok());
  ASSERT_TRUE(store_->KeepFor(marked.info.id, 2 * kAnHour).ok());
  ASSERT_TRUE(store_->KeepFor(both.info.id, 2 * kAnHour).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->KeepFor(Chunk(9).info.id, kAnHour)));
  clock_.Advance(2 * kAnHour - Duration(1));
  EXPECT_EQ(store_->Expire(10), 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store_->Drop(marked.info.id, {.not_kept = true, .idle_min = kAnHour})));
  clock_.Advance(Duration(1));
  EXPECT_EQ(store_->Expire(10), 1u);
  EXPECT_FALSE(Has(both));
  EXPECT_FALSE(store_->table().List(std::nullopt, 1).at(0).kept);
  EXPECT_TRUE(store_->Drop(marked.info.id, {.not_kept = true, .idle_min = kAnHour}).ok());

  // The last call counts, whether it marks for good or not at all.
  ASSERT_TRUE(Put(marked, Duration(0)).ok());
  ASSERT_TRUE(store_->KeepFor(marked.info.id, kAnHour).ok());
  ASSERT_TRUE(store_->Keep(marked.info.id, true).ok());
  clock_.Advance(kAnHour);
  EXPECT_EQ(store_->Expire(10), 0u);
  EXPECT_TRUE(store_->table().List(std::nullopt, 1).at(0).kept);
}

INSTANTIATE_TEST_SUITE_P(Stores, ChunkTimesTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "Folder" : "Memory"; });

class ChunkTimesRestartTest : public ChunkTimesTest {};

TEST_P(ChunkTimesRestartTest, TimesOutliveTheProcess) {
  const SmallChunk marked = Chunk(1), timed = Chunk(2), lifted = Chunk(3), good = Chunk(4);
  for (const SmallChunk* chunk : {&marked, &good}) ASSERT_TRUE(Put(*chunk, Duration(0)).ok());
  for (const SmallChunk* chunk : {&timed, &lifted}) ASSERT_TRUE(Put(*chunk, kAnHour).ok());
  ASSERT_TRUE(Put(lifted, Duration(0)).ok());
  ASSERT_TRUE(store_->KeepFor(marked.info.id, kAnHour).ok());
  ASSERT_TRUE(store_->Keep(good.info.id, true).ok());
  const auto kept = [&](const SmallChunk& chunk) {
    for (const ChunkListing& listing : store_->table().List(std::nullopt, 10)) {
      if (listing.id == chunk.info.id) return listing.kept;
    }
    return false;
  };
  clock_.Advance(kAnHour / 2);
  Open();
  EXPECT_TRUE(kept(marked) && kept(good));
  EXPECT_EQ(store_->Expire(10), 0u);
  // The ttl counts from the start. The mark ends by the wall clock, which passed no half hour here.
  clock_.Advance(kAnHour / 2);
  EXPECT_EQ(store_->Expire(10), 0u);
  EXPECT_TRUE(Has(timed) && kept(marked));
  clock_.Advance(kAnHour / 2);
  EXPECT_EQ(store_->Expire(10), 1u);
  EXPECT_FALSE(Has(timed));
  EXPECT_FALSE(kept(marked));
  EXPECT_TRUE(kept(good) && Has(lifted));
  EXPECT_FALSE(HasFile(timed));
}

// Goal: a mark that ended while the holder was away has ended.
TEST_P(ChunkTimesRestartTest, IgnoresAMarkOfThePast) {
  const SmallChunk marked = Chunk(1);
  ASSERT_TRUE(Put(marked, Duration(0)).ok());
  ASSERT_TRUE(store_->KeepFor(marked.info.id, std::chrono::milliseconds(1)).ok());
  const uint64_t after = WallClockMilliseconds() + 2;
  while (WallClockMilliseconds() < after) {
  }
  Open();
  EXPECT_EQ(store_->Expire(10), 0u);
  EXPECT_FALSE(store_->table().List(std::nullopt, 1).at(0).kept);
}

// The first half of each row.
class HalfCodec final : public ShadowCodec {
 public:
  uint32_t PackedRowBytes(const Geometry& geometry) const override {
    return geometry.row_bytes() / 2;
  }
  bool Pack(const Geometry& geometry, const std::byte* row, std::byte* packed) const override {
    std::copy_n(row, geometry.row_bytes() / 2, packed);
    return true;
  }
};

// Goal: the shadow of a cold chunk is dropped from memory with the chunk. Method: memory of 1 MiB,
// chunks of 600 KB.
TEST_P(ChunkTimesRestartTest, AShadowEndsWithItsChunk) {
  const HalfCodec codec;
  options_.shadow_codec = &codec;
  options_.shadow_bytes_max = 1 << 20;
  Open();
  ASSERT_TRUE(Put(MakeSmallChunk(geometry_, 10'000, 1), kAnHour).ok());
  ASSERT_TRUE(Put(MakeSmallChunk(geometry_, 10'000, 2), Duration(0)).ok());
  ASSERT_EQ(store_->stats().shadow_count, 1u);
  clock_.Advance(kAnHour);
  EXPECT_EQ(store_->Expire(10), 1u);
  EXPECT_EQ(store_->stats().shadow_count, 0u);
  store_.reset();  // before the codec
}

INSTANTIATE_TEST_SUITE_P(Stores, ChunkTimesRestartTest, testing::Values(true));

}  // namespace
}  // namespace ckv
