// Goal: a full disk refuses puts with a clear error, reads go on, and puts work again when there is
// room. Method: a real tmpfs of 1 MiB, mounted in a namespace of this process alone.

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "gtest/gtest.h"
#include "store/chunk_store.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

TEST(ChunkStoreFull, AFullDiskRefusesPutsAndNothingElse) {
  const std::string path = test::TempPath("small");
  std::filesystem::create_directory(path);
  if (!test::MountSmallDisk(path))
    GTEST_SKIP() << "no mount for this user: " << strerror(errno)
                 << "; to run it: the same as root";
  const Geometry geometry = IndexedGeometry();
  ChunkStoreOptions options;
  options.path = path + "/store";
  options.capacity_bytes = 8 << 20;
  const auto put = [&](ChunkStore& store, uint32_t seed) -> absl::Status {
    const SmallChunk chunk = MakeSmallChunk(geometry, 1500, seed);
    CKV_ASSIGN_OR_RETURN(ChunkPut begun, store.Begin(chunk.info, geometry));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
      CKV_RETURN_IF_ERROR(begun.Write(l, 0, chunk.layers[l]));
    return std::move(begun).Finish();
  };
  const auto reads = [&](ChunkStore& store, uint32_t count) {
    for (uint32_t seed = 0; seed < count; ++seed) {
      const SmallChunk chunk = MakeSmallChunk(geometry, 1500, seed);
      const auto locator = store.table().Find(chunk.info.id, geometry);
      ASSERT_TRUE(locator.ok()) << seed;
      const auto pin = store.Load(*locator);
      ASSERT_TRUE(pin.ok()) << pin.status();
      EXPECT_EQ(ChecksumOf(pin->chunk().layer(2)), chunk.info.tensor_checksums[2]);
    }
  };
  uint32_t count = 0;
  {
    const auto store = *ChunkStore::Open(options);
    absl::Status full;
    while ((full = put(*store, count)).ok() && count < 100) ++count;
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_NE(full.ToString().find("No space left"), std::string::npos) << full;
    EXPECT_GE(count, 5u);
    for (int again = 0; again < 3; ++again) EXPECT_FALSE(put(*store, count).ok());
    reads(*store, count);
  }
  // A restart on the full disk finds what there was, and room when some of it is dropped.
  const auto store = ChunkStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->stats().table.chunk_count, count);
  reads(**store, count);
  const ChunkId last = MakeSmallChunk(geometry, 1500, count - 1).info.id;
  ASSERT_TRUE((*store)->Drop(last).ok());
  EXPECT_TRUE(put(**store, count).ok());
}

}  // namespace
}  // namespace ckv
