// Goal: rows are read in place, exactly the requested ones; a cold chunk stays cold, and only the
// stripes that have the rows are read.

#include "store/chunk_rows.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/chunk_store.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

using absl::StatusCode;

// 100 tokens: three whole stripes and one of four tokens.
struct ChunkRowsTest : testing::Test {
  ChunkRowsTest() {
    static int count = 0;
    options.path = test::TempPath(absl::StrCat("rows", count++));
    options.capacity_bytes = 1 << 20;
    options.files = &files;
    options.scan_threads = 1;
    Open();
    ChunkPut put = *store->Begin(chunk.info, geometry);
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
      EXPECT_TRUE(put.Write(l, 0, chunk.layers[l]).ok());
    EXPECT_TRUE(std::move(put).Finish().ok());
  }
  void Open() {
    store.reset();
    store = *ChunkStore::Open(options);
  }
  absl::StatusOr<ChunkRows> Rows() {
    return store->OpenRows(*store->table().Find(chunk.info.id, geometry));
  }
  std::string File() const { return test::ChunkFileOf(options.path, chunk.info.id); }
  // Every range of every tensor, compared with what was put.
  void ExpectEveryRange(const ChunkRows& rows) {
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
      const size_t row = geometry.tensor_row_bytes(l);
      for (uint32_t begin = 0; begin <= 100; ++begin) {
        for (uint32_t count = 0; count <= 100 - begin; ++count) {
          std::vector<std::byte> read(count * row, std::byte{0xaa});
          ASSERT_TRUE(rows.Read(l, begin, count, read).ok());
          ASSERT_TRUE(std::equal(read.begin(), read.end(), chunk.layers[l].begin() + begin * row))
              << l << " " << begin << " " << count;
        }
      }
    }
  }

  FaultFileSystem files;
  const Geometry geometry = IndexedGeometry();
  const SmallChunk chunk = MakeSmallChunk(geometry, 100, 1);
  ChunkStoreOptions options;
  std::unique_ptr<ChunkStore> store;
};

TEST_F(ChunkRowsTest, HotAndColdGiveTheSameRows) {
  ExpectEveryRange(*Rows());
  EXPECT_TRUE(Rows()->hot());
  Open();
  const ChunkRows rows = *Rows();
  EXPECT_FALSE(rows.hot());
  EXPECT_EQ(rows.info().token_ids, chunk.info.token_ids);
  ExpectEveryRange(rows);
  EXPECT_EQ(store->stats().table.cold_count, 1u);
  EXPECT_EQ(store->stats().table.used_bytes, 0u);
}

TEST_F(ChunkRowsTest, OutsideTheChunkIsRefused) {
  for (int cold = 0; cold < 2; ++cold) {
    if (cold == 1) Open();
    const ChunkRows rows = *Rows();
    std::vector<std::byte> one(geometry.row_bytes());
    EXPECT_EQ(rows.Read(geometry.tensor_count(), 0, 1, one).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(rows.Read(0, 100, 1, one).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(rows.Read(0, 4294967295u, 2, one).code(), StatusCode::kInvalidArgument);
  }
}

// A stripe without requested rows is not read, so its damage is not found. The damage of one that
// is read is found.
TEST_F(ChunkRowsTest, ReadsOnlyTheRequestedStripes) {
  Open();
  const size_t row = geometry.row_bytes();
  const auto total_bytes = static_cast<int64_t>(ChunkLayout(geometry, 100).total_bytes());
  test::FlipBits(File(), static_cast<int64_t>(40 * row) - total_bytes);
  std::vector<std::byte> read(32 * row);
  {
    const ChunkRows rows = *Rows();
    EXPECT_TRUE(rows.Read(0, 0, 32, read).ok());
    EXPECT_TRUE(rows.Read(0, 64, 32, read).ok());
    EXPECT_TRUE(rows.Read(1, 32, 32, read).ok());
    EXPECT_EQ(store->stats().damaged_count, 0u);
    EXPECT_EQ(rows.Read(0, 63, 1, std::span(read).first(row)).code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(store->stats().damaged_count, 1u);
  EXPECT_FALSE(store->table().Contains(chunk.info.id));
}

TEST_F(ChunkRowsTest, ADeviceThatFailsCostsNoChunk) {
  Open();
  const ChunkRows rows = *Rows();
  files.set_hook([](FaultFileSystem::Call call, const std::string&) {
    return call == FaultFileSystem::Call::kRead ? absl::UnavailableError("EIO") : absl::OkStatus();
  });
  std::vector<std::byte> one(geometry.row_bytes());
  EXPECT_EQ(rows.Read(0, 0, 1, one).code(), StatusCode::kUnavailable);
  files.set_hook(nullptr);
  EXPECT_TRUE(rows.Read(0, 0, 1, one).ok());
}

// A reader continues while the chunk is dropped.
TEST_F(ChunkRowsTest, ADroppedChunkIsReadToItsEnd) {
  for (int cold = 0; cold < 2; ++cold) {
    if (cold == 1) {
      ChunkPut put = *store->Begin(chunk.info, geometry);
      for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
        ASSERT_TRUE(put.Write(l, 0, chunk.layers[l]).ok());
      ASSERT_TRUE(std::move(put).Finish().ok());
      Open();
    }
    const ChunkRows rows = *Rows();
    EXPECT_EQ(rows.hot(), cold == 0);
    ASSERT_TRUE(store->Drop(chunk.info.id).ok());
    ExpectEveryRange(rows);
  }
}

}  // namespace
}  // namespace ckv
