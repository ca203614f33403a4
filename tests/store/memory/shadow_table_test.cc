// Goal: a shadow has what the codec made of each row, in the chunk's own memory, the rest of which
// is freed. The table keeps to its limit, drops the oldest first, and never returns one chunk's
// shadow for another's.

#include "store/memory/shadow_table.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

// Every second byte of a row, unless the row has a byte that cannot be packed.
class FailingCodec final : public ShadowCodec {
 public:
  uint32_t PackedRowBytes(const Geometry& geometry) const override {
    return geometry.row_bytes() / 2;
  }
  bool Pack(const Geometry& geometry, const std::byte* row, std::byte* packed) const override {
    std::vector<std::byte> bytes(row, row + geometry.row_bytes());
    for (uint32_t i = 0; i < geometry.row_bytes() / 2; ++i) packed[i] = bytes[2 * i];
    return !fails;
  }
  bool fails = false;
};

struct ShadowTest : testing::Test {
  Chunk MakeChunk(uint32_t seed) {
    const SmallChunk small = MakeSmallChunk(geometry, 100, seed);
    ChunkWriter writer = *ChunkWriter::Begin(small.info, &geometry, arena.get());
    for (uint32_t l = 0; l < geometry.layers; ++l)
      EXPECT_TRUE(writer.Write(l, 0, small.layers[l]).ok());
    return *std::move(writer).Finish();
  }
  std::shared_ptr<const Shadow> MakeShadow(uint32_t seed) {
    return Shadow::Make(MakeChunk(seed), codec);
  }

  const Geometry geometry = SmallGeometry();
  FailingCodec codec;
  const std::unique_ptr<Arena> arena = *Arena::Create(1 << 20);
};

TEST_F(ShadowTest, HasEveryPackedRowInHalfTheMemory) {
  const SmallChunk small = MakeSmallChunk(geometry, 100, 1);
  Chunk chunk = MakeChunk(1);
  const uint64_t before = arena->used_bytes();
  const auto shadow = Shadow::Make(std::move(chunk), codec);
  ASSERT_NE(shadow, nullptr);
  const uint32_t row = geometry.row_bytes();
  EXPECT_EQ(shadow->row_bytes(), row / 2);
  EXPECT_EQ(shadow->token_count(), 100u);
  EXPECT_EQ(shadow->bytes(), arena->used_bytes());
  EXPECT_LE(arena->used_bytes(), before / 2 + 64 * geometry.layers);
  for (uint32_t l = 0; l < geometry.layers; ++l) {
    for (uint32_t t = 0; t < 100; ++t) {
      for (uint32_t i = 0; i < row / 2; ++i)
        ASSERT_EQ(shadow->layer(l)[t * row / 2 + i], small.layers[l][t * row + 2 * i]);
    }
  }
  // The freed memory can be allocated again.
  EXPECT_TRUE(arena->Allocate(arena->capacity_bytes() - arena->used_bytes()).ok());
}

TEST_F(ShadowTest, KeepsNothingOfWhatCannotBePacked) {
  codec.fails = true;
  EXPECT_EQ(MakeShadow(1), nullptr);
  EXPECT_EQ(arena->used_bytes(), 0u);
}

TEST_F(ShadowTest, KeepsNothingOfWhatIsDamagedInMemory) {
  for (const uint32_t layer : {0u, geometry.layers - 1}) {
    Chunk chunk = MakeChunk(1);
    auto* const byte = const_cast<std::byte*>(&chunk.layer(layer).back());
    *byte ^= std::byte{1};
    EXPECT_EQ(Shadow::Make(std::move(chunk), codec), nullptr);
    EXPECT_EQ(arena->used_bytes(), 0u);
  }
}

TEST_F(ShadowTest, EvictsTheOldestFirstWithinTheLimit) {
  const auto first = MakeShadow(1);
  ShadowTable table(3 * first->bytes());
  table.Add({7, 1}, first);
  for (uint32_t i = 0; i < 2; ++i) table.Add({8 + i, 1}, MakeShadow(2 + i));
  EXPECT_EQ(table.count(), 3u);
  EXPECT_EQ(table.Find({7, 1}), first);
  table.Add({10, 1}, MakeShadow(4));
  EXPECT_EQ(table.count(), 3u);
  EXPECT_EQ(table.Find({7, 1}), nullptr);
  EXPECT_NE(table.Find({8, 1}), nullptr);
  // A chunk that got another shadow is as young as that one.
  table.Add({8, 2}, MakeShadow(5));
  EXPECT_TRUE(table.RemoveOldest());
  EXPECT_EQ(table.Find({9, 1}), nullptr);
  EXPECT_NE(table.Find({8, 2}), nullptr);
  EXPECT_TRUE(table.RemoveOldest());
  EXPECT_TRUE(table.RemoveOldest());
  EXPECT_FALSE(table.RemoveOldest());
  EXPECT_EQ(arena->used_bytes(), first->bytes());  // a reader keeps its shadow
}

TEST_F(ShadowTest, AnotherGenerationIsAnotherChunk) {
  ShadowTable table(1 << 20);
  table.Add({7, 1}, MakeShadow(1));
  EXPECT_EQ(table.Find({7, 2}), nullptr);
  table.Remove({7, 2});
  EXPECT_NE(table.Find({7, 1}), nullptr);
  table.Remove({7, 1});
  EXPECT_EQ(table.Find({7, 1}), nullptr);
  EXPECT_EQ(arena->used_bytes(), 0u);
}

// Ages of removed shadows do not pile up.
TEST_F(ShadowTest, ManyAppearAndDisappear) {
  ShadowTable table(1 << 20);
  const auto shadow = MakeShadow(1);
  for (uint32_t i = 0; i < 10'000; ++i) {
    table.Add({i % 4, i}, shadow);
    if (i % 3 == 0) table.Remove({i % 4, i});
  }
  while (table.RemoveOldest()) {
  }
  EXPECT_EQ(table.count(), 0u);
}

TEST_F(ShadowTest, DoesNotKeepAShadowBeyondTheLimit) {
  const auto shadow = MakeShadow(1);
  ShadowTable table(shadow->bytes() - 1);
  table.Add({1, 1}, shadow);
  EXPECT_EQ(table.count(), 0u);
}

}  // namespace
}  // namespace ckv
