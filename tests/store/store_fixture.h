// A store over a folder of its own, with small chunks to put into it.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "store/chunk_store.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {

// The bytes of a chunk of three layers in memory. Each layer has rows of 2,048 bytes, and index
// keys of 832 with their padding.
inline constexpr uint64_t kSmallChunkBytes = 3 * (2048 + 832);

struct StoreFixture : testing::Test {
  // Memory for `hot_count` of `chunk_count` chunks.
  StoreFixture(uint32_t chunk_count, uint32_t hot_count) {
    static int count = 0;
    options.path = test::TempPath(absl::StrCat("store", count++));
    options.capacity_bytes = hot_count * kSmallChunkBytes;
    options.files = &files;
    options.scan_threads = 2;
    for (uint32_t i = 0; i < chunk_count; ++i) chunks.push_back(MakeSmallChunk(geometry, 100, i));
    Open();
  }
  // As after a restart.
  void Open() {
    store.reset();
    auto opened = ChunkStore::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store = *std::move(opened);
  }

  absl::Status Put(const SmallChunk& chunk, std::string_view tenant = "") {
    CKV_ASSIGN_OR_RETURN(ChunkPut put, store->Begin(chunk.info, geometry, tenant));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
      const std::span<const std::byte> rows = chunk.layers[l];
      const size_t first = std::min<size_t>(rows.size(), 1000);
      CKV_RETURN_IF_ERROR(put.Write(l, 0, rows.first(first)));
      CKV_RETURN_IF_ERROR(put.Write(l, first, rows.subspan(first)));
    }
    return std::move(put).Finish();
  }
  // Loads the chunk if it is cold, and compares its rows.
  absl::Status Read(const SmallChunk& chunk, std::string_view tenant = "") {
    CKV_ASSIGN_OR_RETURN(const ChunkLocator locator,
                         store->table().Find(chunk.info.id, geometry, tenant));
    CKV_ASSIGN_OR_RETURN(const ChunkPin pin, store->Load(locator));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
      const auto rows = pin.chunk().tensor(l);
      if (!std::equal(rows.begin(), rows.end(), chunk.layers[l].begin(), chunk.layers[l].end()))
        return absl::InternalError("other rows than were put");
    }
    return absl::OkStatus();
  }
  bool IsHot(const SmallChunk& chunk) {
    return store->table().Pin(*store->table().Locate(chunk.info.id)).ok();
  }

  std::string FileOf(const SmallChunk& chunk) const {
    return test::ChunkFileOf(options.path, chunk.info.id);
  }
  // One bit, another for each offset.
  void FlipFile(const SmallChunk& chunk, uint64_t offset) {
    test::FlipBits(FileOf(chunk), static_cast<int64_t>(offset), 1 << offset % 8);
  }

  FaultFileSystem files;
  const Geometry geometry = IndexedGeometry();
  ChunkStoreOptions options;
  std::vector<SmallChunk> chunks;
  std::unique_ptr<ChunkStore> store;
};

}  // namespace ckv
