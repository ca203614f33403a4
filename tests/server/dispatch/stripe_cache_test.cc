// Goal: stripes that were read are found again with their bytes, the oldest are evicted first,
// memory stays within the limit, and no stripe in use is evicted. Method: a store with one cold
// chunk a seed, whose file reads are counted; pages in memory are counted by mincore.

#include "server/batch/stripe_cache.h"

#include <sys/mman.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/base/stripe.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

using absl::StatusCode;
using List = std::vector<uint32_t>;

constexpr uint32_t kTokens = 1000;  // 32 stripes, the last of 8 tokens
constexpr uint64_t kPage = SparseLayer::kPageBytes;

// Stripes of 9 pages if a row has 576 values; of 2 or 3 pages, shared, if it has 82.
Geometry GeometryOf(uint32_t d_qk) {
  Geometry geometry = SmallGeometry();
  geometry.d_qk = d_qk;
  geometry.d_v = d_qk - 2;
  return geometry;
}

class StripeCacheTest : public testing::Test {
 protected:
  struct Cold {
    SmallChunk chunk;
    ChunkLocator locator;
  };

  void Open(uint32_t d_qk = 576) {
    geometry_ = GeometryOf(d_qk);
    static int count = 0;
    options_.path = test::TempPath(absl::StrCat("stripe_cache", count++));
    options_.capacity_bytes = 16 << 20;
    options_.scan_threads = 1;
    files_.set_hook([this](FaultFileSystem::Call call, const std::string&) {
      if (call == FaultFileSystem::Call::kRead) ++read_count_;
      return absl::OkStatus();
    });
    options_.files = &files_;
    store_ = *ChunkStore::Open(options_);
    for (uint32_t seed = 1; seed <= 2; ++seed) {
      const SmallChunk chunk = MakeSmallChunk(geometry_, kTokens, seed);
      Put(chunk);
      chunks_.push_back({chunk, {}});
    }
    store_.reset();
    store_ = *ChunkStore::Open(options_);
    for (Cold& cold : chunks_) cold.locator = *store_->table().Find(cold.chunk.info.id, geometry_);
  }
  void Put(const SmallChunk& chunk) {
    ChunkPut put = *store_->Begin(chunk.info, geometry_);
    for (uint32_t l = 0; l < geometry_.layers; ++l)
      EXPECT_TRUE(put.Write(l, 0, chunk.layers[l]).ok());
    EXPECT_TRUE(std::move(put).Finish().ok());
  }
  absl::StatusOr<StripeCache::Hold> Fill(StripeCache& cache, const Cold& cold, uint32_t layer,
                                         const List& stripes) {
    CKV_ASSIGN_OR_RETURN(const ChunkRows rows, store_->OpenRows(cold.locator));
    return cache.Fill(cold.locator, rows, layer, stripes);
  }
  // Whether the stripe is in memory. The check makes it the newest.
  static bool Has(StripeCache& cache, const Cold& cold, uint32_t layer, uint32_t stripe) {
    const auto token = static_cast<int32_t>(stripe * kStripeTokens);
    return cache.Find(cold.locator, layer, std::vector<int32_t>{token}).held();
  }
  static size_t MissingOf(const StripeCache& cache, const Cold& cold, uint32_t layer,
                          const List& stripes) {
    return cache.Missing(cold.locator, layer, stripes);
  }
  // Whether the layer has the chunk's rows in `stripes`.
  testing::AssertionResult Right(const StripeCache::Hold& hold, const Cold& cold, uint32_t layer,
                                 const List& stripes) const {
    const uint64_t row = geometry_.row_bytes();
    const std::span<const std::byte> want = cold.chunk.layers[layer];
    for (const uint32_t stripe : stripes) {
      const uint64_t begin = stripe * kStripeTokens * row;
      const uint64_t end = std::min<uint64_t>(begin + kStripeTokens * row, want.size());
      if (!std::equal(want.data() + begin, want.data() + end, hold.rows() + begin))
        return testing::AssertionFailure() << "stripe " << stripe;
    }
    return testing::AssertionSuccess();
  }
  // Bytes of the layer that are in memory.
  uint64_t InMemory(const StripeCache::Hold& hold) const {
    const uint64_t bytes = kTokens * geometry_.row_bytes();
    std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
    // Pages of private memory that were never touched are not counted.
    EXPECT_EQ(mincore(const_cast<std::byte*>(hold.rows()), bytes, pages.data()), 0);
    return kPage * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(),
                                                       [](unsigned char p) { return p & 1; }));
  }
  uint64_t StripeBytes() const { return kStripeTokens * geometry_.row_bytes(); }

  Geometry geometry_;
  FaultFileSystem files_;
  std::atomic<uint64_t> read_count_{0};
  ChunkStoreOptions options_;
  std::unique_ptr<ChunkStore> store_;
  std::vector<Cold> chunks_;
};

TEST_F(StripeCacheTest, FindsReadRowsWithoutAnotherRead) {
  Open();
  StripeCache cache(1 << 20);
  const Cold& cold = chunks_[0];
  EXPECT_FALSE(Has(cache, cold, 1, 3));
  {
    const auto hold = Fill(cache, cold, 1, {0, 3, 4, 31});
    ASSERT_TRUE(hold.ok()) << hold.status();
    EXPECT_TRUE(Right(*hold, cold, 1, {0, 3, 4, 31}));
    EXPECT_EQ(hold->stripe_count(), 4u);
  }
  EXPECT_EQ(cache.bytes(), 3 * StripeBytes() + 3 * kPage);  // the last has 8 rows of 1152 bytes
  const uint64_t reads = read_count_;
  const auto found = cache.Find(cold.locator, 1, std::vector<int32_t>{130, 97, -1, 5000, 999, 130});
  ASSERT_TRUE(found.held());
  EXPECT_EQ(found.stripe_count(), 3u);
  EXPECT_EQ(found.token_count(), kTokens);
  EXPECT_TRUE(Right(found, cold, 1, {0, 3, 4, 31}));
  EXPECT_EQ(read_count_, reads);
  // One that is absent makes it a miss; so does another layer, chunk or generation of the chunk.
  EXPECT_FALSE(cache.Find(cold.locator, 1, std::vector<int32_t>{97, 64}).held());
  EXPECT_FALSE(Has(cache, cold, 2, 3));
  EXPECT_FALSE(Has(cache, chunks_[1], 1, 3));
  const ChunkLocator next = {cold.locator.slot, cold.locator.generation + 1};
  EXPECT_FALSE(cache.Find(next, 1, std::vector<int32_t>{97}).held());
}

// One read for the stripe that is missing, between two that are there.
TEST_F(StripeCacheTest, OnlyWhatIsMissingIsRead) {
  Open();
  StripeCache cache(1 << 20);
  const Cold& cold = chunks_[0];
  ASSERT_TRUE(Fill(cache, cold, 0, {3, 5, 6}).ok());
  EXPECT_EQ(MissingOf(cache, cold, 0, {3, 4, 5, 6}), 1u);
  const ChunkRows rows = *store_->OpenRows(cold.locator);
  const uint64_t reads = read_count_;
  const auto hold = cache.Fill(cold.locator, rows, 0, List{3, 4, 5, 6});
  EXPECT_EQ(read_count_, reads + 1);
  EXPECT_TRUE(Right(*hold, cold, 0, {3, 4, 5, 6}));
  const auto again = cache.Fill(cold.locator, rows, 0, List{3, 4, 5, 6});
  EXPECT_EQ(read_count_, reads + 1);
}

TEST_F(StripeCacheTest, EvictsTheOldestFirst) {
  Open();
  StripeCache cache(4 * StripeBytes());
  const Cold& cold = chunks_[0];
  for (const uint32_t stripe : {1, 2, 3, 4}) ASSERT_TRUE(Fill(cache, cold, 0, {stripe}).ok());
  EXPECT_TRUE(Has(cache, cold, 0, 1));  // now 2 is the oldest
  ASSERT_TRUE(Fill(cache, cold, 0, {9}).ok());
  EXPECT_EQ(MissingOf(cache, cold, 0, {1, 3, 4, 9}), 0u);
  EXPECT_EQ(MissingOf(cache, cold, 0, {2}), 1u);
  ASSERT_TRUE(Fill(cache, cold, 0, {3, 10}).ok());  // 3 is used, so 4 is evicted
  EXPECT_EQ(MissingOf(cache, cold, 0, {1, 3, 9, 10}), 0u);
  EXPECT_EQ(cache.bytes(), 4 * StripeBytes());
  // Another layer may take the room of this one, to the last stripe.
  ASSERT_TRUE(Fill(cache, cold, 1, {0, 1, 2, 3}).ok());
  EXPECT_EQ(MissingOf(cache, cold, 0, {1, 3, 9, 10}), 4u);
  EXPECT_EQ(cache.bytes(), 4 * StripeBytes());
  const auto back = Fill(cache, cold, 0, {1, 3});
  EXPECT_TRUE(Right(*back, cold, 0, {1, 3}));
}

TEST_F(StripeCacheTest, EvictsNothingInUse) {
  Open();
  StripeCache cache(4 * StripeBytes());
  const Cold& cold = chunks_[0];
  auto held = Fill(cache, cold, 0, {1, 2, 3});
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(Fill(cache, cold, 1, {7}).ok());
  ASSERT_TRUE(Fill(cache, cold, 2, {8}).ok());  // in the room of the newer one, which is free
  EXPECT_EQ(MissingOf(cache, cold, 1, {7}), 1u);
  const uint64_t reads = read_count_;
  const ChunkRows rows = *store_->OpenRows(cold.locator);
  const uint64_t header_reads = read_count_ - reads;
  EXPECT_EQ(cache.Fill(cold.locator, rows, 1, List{4, 5}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(read_count_, reads + header_reads);
  EXPECT_TRUE(Right(*held, cold, 0, {1, 2, 3}));
  // More than the limit never fits.
  EXPECT_EQ(Fill(cache, chunks_[1], 0, {0, 1, 2, 3, 4}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_LE(cache.bytes(), 4 * StripeBytes());
  *held = {};
  EXPECT_TRUE(Fill(cache, cold, 1, {4, 5}).ok());
}

// The limit is of real memory, whether or not stripes end where pages do.
TEST_F(StripeCacheTest, MemoryIsWhatIsCountedOrLess) {
  for (const uint32_t d_qk : {576u, 82u, 10u}) {
    SCOPED_TRACE(testing::Message() << "d_qk " << d_qk);
    chunks_.clear();
    Open(d_qk);
    const Cold& cold = chunks_[0];
    const uint64_t limit = 5 * (StripeBytes() + 2 * kPage);
    StripeCache cache(limit);
    std::mt19937 rng(d_qk);
    for (int i = 0; i < 200; ++i) {
      List stripes;
      for (uint32_t s = rng() % 8; s < 32 && stripes.size() < 4; s += 1 + rng() % 12)
        stripes.push_back(s);
      const auto hold = Fill(cache, cold, 1, stripes);
      ASSERT_TRUE(hold.ok()) << hold.status();
      ASSERT_TRUE(Right(*hold, cold, 1, stripes));
      // Stripes that others read earlier are right as long as they are there.
      for (uint32_t s = 0; s < 32; ++s) {
        if (MissingOf(cache, cold, 1, {s}) == 0) {
          ASSERT_TRUE(Right(*hold, cold, 1, {s}));
        }
      }
      ASSERT_LE(cache.bytes(), limit);
      ASSERT_LE(InMemory(*hold), cache.bytes());
    }
  }
}

TEST_F(StripeCacheTest, ADamagedStripeIsNotKept) {
  Open(82);
  StripeCache cache(1 << 20);
  const Cold& cold = chunks_[0];
  const auto held = Fill(cache, cold, 1, {2});
  ASSERT_TRUE(held.ok());
  const uint64_t bytes = cache.bytes();
  const ChunkLayout layout(geometry_, kTokens);
  const std::string file = test::ChunkFileOf(options_.path, cold.chunk.info.id);
  const uint64_t rows_begin = std::filesystem::file_size(file) - layout.total_bytes();
  test::FlipBits(file, static_cast<int64_t>(rows_begin + layout.begin(1) +
                                            (4 * kStripeTokens + 1) * geometry_.row_bytes()));
  EXPECT_EQ(Fill(cache, cold, 1, {1, 3, 4}).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(Fill(cache, chunks_[1], 1, {1, 3}).status().code(), StatusCode::kOk);
  EXPECT_EQ(MissingOf(cache, cold, 1, {1, 3, 4}), 3u);
  EXPECT_TRUE(Right(*held, cold, 1, {2}));
  EXPECT_LE(InMemory(*held), bytes);
}

// One thread reads, another finds: what is found is right while it is held.
TEST_F(StripeCacheTest, AReaderAndAFinder) {
  Open();
  StripeCache cache(6 * StripeBytes());
  const Cold& cold = chunks_[0];
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::mt19937 rng(1);
    for (int i = 0; i < 400; ++i) {
      const uint32_t stripe = rng() % 8;
      const auto hold = Fill(cache, cold, rng() % 2, {stripe, stripe + 1});
      // Both layers may be held by the finder, and full.
      EXPECT_TRUE(hold.ok() || absl::IsResourceExhausted(hold.status())) << hold.status();
    }
    done = true;
  });
  std::mt19937 rng(2);
  uint64_t found = 0;
  while (!done || found == 0) {
    const uint32_t layer = rng() % 2, stripe = rng() % 9;
    const auto token = static_cast<int32_t>(stripe * kStripeTokens + rng() % kStripeTokens);
    const auto hold = cache.Find(cold.locator, layer, std::vector<int32_t>{token});
    if (!hold.held()) continue;
    ++found;
    EXPECT_TRUE(Right(hold, cold, layer, {stripe}));
  }
  reader.join();
  EXPECT_LE(cache.bytes(), 6 * StripeBytes());
}

TEST(StripeBytesMaxTest, AShareOfTheCapacity) {
  EXPECT_EQ(StripeBytesMax(uint64_t{100} << 30), uint64_t{3} << 30);
  EXPECT_EQ(StripeBytesMax(0), 0u);
}

}  // namespace
}  // namespace ckv
