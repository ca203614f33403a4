// Goal: exactly the requested stripes of a layer on disk are read, to their places, and never more
// than the limit.

#include "server/batch/cold_rows.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/base/stripe.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

using absl::StatusCode;

std::vector<uint32_t> Stripes(std::vector<int32_t> indices, uint32_t token_count,
                              std::vector<uint32_t> stripes = {}) {
  AddSelectedStripes(indices, token_count, &stripes);
  return stripes;
}

TEST(AddSelectedStripesTest, EachOnceAndAscending) {
  using List = std::vector<uint32_t>;
  EXPECT_EQ(Stripes({}, 100), List());
  EXPECT_EQ(Stripes({99, 0, 31, 32, 0}, 100), (List{0, 1, 3}));
  EXPECT_EQ(Stripes({-1, 100, -2147483647 - 1, 2147483647}, 100), List());
  EXPECT_EQ(Stripes({0}, 0), List());
  EXPECT_EQ(Stripes({99, 40}, 100, {1, 2}), (List{1, 2, 3}));
}

struct ColdRowsTest : testing::Test {
  ColdRowsTest() {
    static int count = 0;
    options.path = test::TempPath(absl::StrCat("cold_rows", count++));
    options.capacity_bytes = 1 << 20;
    options.scan_threads = 1;
    store = *ChunkStore::Open(options);
    ChunkPut put = *store->Begin(chunk.info, geometry);
    for (uint32_t l = 0; l < geometry.layers; ++l)
      EXPECT_TRUE(put.Write(l, 0, chunk.layers[l]).ok());
    EXPECT_TRUE(std::move(put).Finish().ok());
    store.reset();
    store = *ChunkStore::Open(options);
    locator = *store->table().Find(chunk.info.id, geometry);
  }

  const Geometry geometry = SmallGeometry();
  const SmallChunk chunk = MakeSmallChunk(geometry, 100, 1);
  ChunkStoreOptions options;
  std::unique_ptr<ChunkStore> store;
  ChunkLocator locator;
};

TEST_F(ColdRowsTest, StripesAreAtTheirPlacesInTheLayer) {
  ColdRows rows(1 << 20);
  EXPECT_EQ(rows.Find(locator), nullptr);
  const ChunkRows file = *store->OpenRows(locator);
  ASSERT_TRUE(rows.Add(locator, file, 2, std::vector<uint32_t>{0, 2, 3}).ok());
  const ColdRows::Layer* const layer = rows.Find(locator);
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->token_count, 100u);
  const size_t row = geometry.row_bytes();
  const std::span<const std::byte> want = chunk.layers[2];
  for (size_t token = 0; token < 100; ++token) {
    const std::span<const std::byte> read(layer->rows + token * row, row);
    const bool requested = token / kStripeTokens != 1;
    EXPECT_EQ(std::equal(read.begin(), read.end(), want.begin() + token * row), requested) << token;
  }
  EXPECT_EQ(rows.Find({locator.slot, locator.generation + 1}), nullptr);
}

// A request may name a chunk twice: each piece finds its rows.
TEST_F(ColdRowsTest, TwoSelectionsOfOneChunkShareItsLayer) {
  ColdRows rows(1 << 20);
  const ChunkRows file = *store->OpenRows(locator);
  ASSERT_TRUE(rows.Add(locator, file, 1, std::vector<uint32_t>{0}).ok());
  ASSERT_TRUE(rows.Add(locator, file, 1, std::vector<uint32_t>{3}).ok());
  const size_t row = geometry.row_bytes();
  for (const size_t token : {0, 31, 96, 99}) {
    const std::span<const std::byte> read(rows.Find(locator)->rows + token * row, row);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), chunk.layers[1].begin() + token * row))
        << token;
  }
}

TEST_F(ColdRowsTest, ReadsNoMoreThanTheLimit) {
  const uint64_t stripe_bytes = kStripeTokens * geometry.row_bytes();
  ColdRows rows(2 * stripe_bytes);
  const ChunkRows file = *store->OpenRows(locator);
  EXPECT_EQ(rows.Add(locator, file, 0, std::vector<uint32_t>{0, 1, 2}).code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(rows.bytes(), 0u);
  EXPECT_TRUE(rows.Add(locator, file, 0, std::vector<uint32_t>{1, 2}).ok());
  EXPECT_EQ(rows.bytes(), 2 * stripe_bytes);
  EXPECT_EQ(rows.Add(locator, file, 0, std::vector<uint32_t>{0}).code(),
            StatusCode::kResourceExhausted);
}

// Memory that a device reaches: each layer has all its bytes there, and none of an earlier request.
TEST_F(ColdRowsTest, LayersAreInTheRoom) {
  const uint64_t layer_bytes = SparseLayer::WholePages(uint64_t{100} * geometry.row_bytes());
  std::vector<std::byte> buffer(layer_bytes + SparseLayer::kPageBytes - 1, std::byte{0xee});
  ColdRows rows(buffer);
  const ChunkRows file = *store->OpenRows(locator);
  ASSERT_TRUE(rows.Add(locator, file, 2, std::vector<uint32_t>{0, 3}).ok());
  EXPECT_EQ(rows.bytes(), layer_bytes);
  ASSERT_TRUE(rows.Add(locator, file, 2, std::vector<uint32_t>{2}).ok());
  EXPECT_EQ(rows.bytes(), layer_bytes) << "it has room for all its stripes";
  const std::byte* const read = rows.Find(locator)->rows;
  EXPECT_EQ(read, buffer.data());
  const size_t row = geometry.row_bytes();
  for (size_t i = 0; i < 100 * row; ++i) {
    const bool requested = i / row / kStripeTokens != 1;
    ASSERT_EQ(read[i], requested ? chunk.layers[2][i] : std::byte{0}) << i;
  }
  // The next layer would need a byte more.
  const ChunkLocator other = {locator.slot + 1, locator.generation};
  EXPECT_EQ(rows.Add(other, file, 2, std::vector<uint32_t>{0}).code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(rows.Find(other), nullptr);
  EXPECT_EQ(buffer[layer_bytes], std::byte{0xee});
}

TEST(ColdRowBytesMaxTest, TheLimitIsAShareOfMemoryWithinBounds) {
  EXPECT_EQ(ColdRowBytesMax(0), uint64_t{4} << 20);
  EXPECT_EQ(ColdRowBytesMax(uint64_t{1} << 30), uint64_t{32} << 20);
  EXPECT_EQ(ColdRowBytesMax(UINT64_MAX), uint64_t{64} << 20);
}

}  // namespace
}  // namespace ckv
