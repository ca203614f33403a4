// Goal: a requester is given exactly one chunk, whole and checked, and no one can change it.

#include "server/session/chunk_exports.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "store/memory/arena.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

class ChunkExportsTest : public testing::Test {
 protected:
  void SetUp() override {
    arena_ = *Arena::Create(1u << 20);
    table_ = std::make_unique<ChunkTable>(arena_.get(), 64);
    ASSERT_TRUE(test::PutCorpus(*table_, corpus_).ok());
  }
  ChunkLocator Locate(size_t i) {
    return *table_->Find(corpus_.chunks[i].info.id, corpus_.geometry);
  }
  ChunkPin Pin(size_t i) { return *table_->Pin(Locate(i)); }
  // Makes and keeps the copy of chunk `i`.
  int Export(ChunkExports& exports, size_t i) {
    const ChunkPin pin = Pin(i);
    auto copy = ChunkExports::Make(pin.chunk(), never_);
    CKV_CHECK(copy.ok());
    return exports.Insert(Locate(i), pin.chunk().layout().total_bytes(), *std::move(copy), *table_);
  }

  const std::atomic<bool> never_{false};
  const test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130}, 1);
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ChunkTable> table_;
};

TEST_F(ChunkExportsTest, TheCopyIsTheChunkAndCannotBeChanged) {
  const ChunkPin pin = Pin(3);
  const auto copy = ChunkExports::Make(pin.chunk(), never_);
  ASSERT_TRUE(copy.ok()) << copy.status();
  const ChunkLayout& layout = pin.chunk().layout();
  struct stat file = {};
  ASSERT_EQ(fstat(copy->get(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_size), layout.total_bytes());

  void* const base = mmap(nullptr, layout.total_bytes(), PROT_READ, MAP_SHARED, copy->get(), 0);
  ASSERT_NE(base, MAP_FAILED);
  for (uint32_t layer = 0; layer < layout.tensor_count(); ++layer) {
    EXPECT_EQ(std::memcmp(static_cast<std::byte*>(base) + layout.begin(layer),
                          corpus_.chunks[3].layers[layer].data(), layout.bytes(layer)),
              0);
  }
  munmap(base, layout.total_bytes());

  EXPECT_EQ(mmap(nullptr, layout.total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, copy->get(), 0),
            MAP_FAILED);
  EXPECT_EQ(pwrite(copy->get(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(copy->get(), 64), -1);
  EXPECT_EQ(fcntl(copy->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1) << "seals are sealed";
}

TEST_F(ChunkExportsTest, RowsThatAreNotWhatWasPutAreNotHandedOver) {
  auto extent = arena_->Allocate(Pin(1).chunk().layout().total_bytes());
  ASSERT_TRUE(extent.ok());
  std::memset(extent->bytes().data(), 0, extent->bytes().size());
  const Chunk damaged(corpus_.chunks[1].info, &corpus_.geometry, *std::move(extent));
  EXPECT_TRUE(absl::IsDataLoss(ChunkExports::Make(damaged, never_).status()));
}

TEST_F(ChunkExportsTest, CopyingEndsWithItsHolder) {
  const std::atomic<bool> stop{true};
  EXPECT_TRUE(absl::IsCancelled(ChunkExports::Make(Pin(1).chunk(), stop).status()));
}

TEST_F(ChunkExportsTest, EvictsTheLeastRecentlyUsedFirst) {
  const uint64_t bytes[] = {Pin(0).chunk().layout().total_bytes(),
                            Pin(1).chunk().layout().total_bytes(),
                            Pin(3).chunk().layout().total_bytes()};
  ChunkExports exports(bytes[0] + bytes[2]);
  EXPECT_TRUE(exports.CheckRoom(Pin(3).chunk()).ok());
  const int first = Export(exports, 0);
  Export(exports, 1);
  EXPECT_EQ(exports.Find(Locate(0)), first) << "used";
  Export(exports, 3);
  EXPECT_EQ(exports.Find(Locate(1)), -1);
  EXPECT_EQ(exports.Find(Locate(0)), first);
  EXPECT_GE(exports.Find(Locate(3)), 0);
  EXPECT_EQ(exports.bytes(), bytes[0] + bytes[2]);
  const ChunkExports none(bytes[2] - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(none.CheckRoom(Pin(3).chunk())));
}

TEST_F(ChunkExportsTest, DropsCopiesOfDroppedChunks) {
  ChunkExports exports(1u << 20);
  const ChunkLocator dropped = Locate(1);
  Export(exports, 1);
  const uint64_t bytes = exports.bytes();
  ASSERT_TRUE(table_->Drop(corpus_.chunks[1].info.id).ok());
  Export(exports, 3);
  EXPECT_EQ(exports.Find(dropped), -1);
  EXPECT_EQ(exports.bytes(), Pin(3).chunk().layout().total_bytes());
  EXPECT_NE(exports.bytes(), bytes);
}

}  // namespace
}  // namespace ckv
