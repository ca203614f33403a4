#include "store/memory/chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "proto/base/stripe.h"
#include "proto/corpus.h"
#include "store/memory/chunk_id.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

constexpr size_t kArenaBytes = 1 << 20;

// The published XXH3-64 of nothing and of "abc": what xxhsum -H3 prints for them.
TEST(ChecksumOf, IsXxh3) {
  EXPECT_EQ(ChecksumOf({}), 0x2d06800538d394c2u);
  const std::string abc = "abc";
  EXPECT_EQ(ChecksumOf(std::as_bytes(std::span(abc))), 0x78af5f94892f3950u);
}

TEST(ValidateChunkInfo, RefusesEachThingThatDoesNotFit) {
  const Geometry geometry = SmallGeometry();
  const ChunkInfo good = MakeSmallChunk(geometry, 4, 1).info;
  ASSERT_TRUE(ValidateChunkInfo(good, geometry).ok());
  struct Case {
    const char* what;
    std::function<void(ChunkInfo&, Geometry&)> change;
  };
  const Case cases[] = {
      {"geometry: layers", [](ChunkInfo&, Geometry& g) { g.layers = 0; }},
      {"tokens, limit",
       [](ChunkInfo& i, Geometry&) { i.token_ids.resize(kChunkTokenCountMax + 1); }},
      {"position", [](ChunkInfo& i, Geometry&) { i.position = kPositionMax + 1; }},
      {"tensor checksums", [](ChunkInfo& i, Geometry&) { i.tensor_checksums.pop_back(); }},
      {"give the id", [](ChunkInfo& i, Geometry&) { i.id.bytes[31] ^= 1; }},
      {"give the id", [](ChunkInfo& i, Geometry&) { i.parent.bytes[0] ^= 1; }},
      {"give the id", [](ChunkInfo& i, Geometry&) { i.position += 1; }},
      {"give the id", [](ChunkInfo& i, Geometry&) { i.token_ids[0] ^= 1; }},
      {"give the id", [](ChunkInfo&, Geometry& g) { g.revision = "2"; }},
      {"give the id", [](ChunkInfo& i, Geometry&) { i.verification_tag.bytes[0] = 1; }},
  };
  for (const Case& c : cases) {
    ChunkInfo info = good;
    Geometry changed = geometry;
    c.change(info, changed);
    const absl::Status status = ValidateChunkInfo(info, changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what;
    EXPECT_NE(std::string(status.message()).find(c.what), std::string::npos) << status;
  }
}

// Goal: bytes are read as they were written, whatever the pieces. Method: pieces of many sizes.
void ExpectTheRowsAreGivenBack(const Geometry& geometry) {
  const auto arena = *Arena::Create(kArenaBytes);
  for (const uint32_t tokens : {0u, 1u, 3u, 16u, 100u}) {
    for (const size_t piece : {size_t{1}, size_t{20}, size_t{64}, size_t{1} << 20}) {
      const SmallChunk small = MakeSmallChunk(geometry, tokens, tokens);
      auto writer = ChunkWriter::Begin(small.info, &geometry, arena.get());
      ASSERT_TRUE(writer.ok()) << writer.status();
      const auto chunk = WriteSmallChunk(*std::move(writer), small, piece);
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      for (uint32_t t = 0; t < geometry.tensor_count(); ++t) {
        const auto rows = chunk->tensor(t);
        const size_t stripe_bytes = kStripeTokens * geometry.tensor_row_bytes(t);
        EXPECT_TRUE(
            std::equal(rows.begin(), rows.end(), small.layers[t].begin(), small.layers[t].end()));
        const auto stripes = chunk->stripe_checksums(t);
        ASSERT_EQ(stripes.size(), (tokens + kStripeTokens - 1) / kStripeTokens);
        for (uint32_t i = 0; i < stripes.size(); ++i) {
          const auto stripe = rows.subspan(i * stripe_bytes);
          const auto bytes = std::min<size_t>(stripe.size(), stripe_bytes);
          EXPECT_EQ(stripes[i], ChecksumOf(stripe.first(bytes)));
        }
      }
    }
  }
  EXPECT_EQ(arena->used_bytes(), 0u);
}

TEST(ChunkWriter, GivesBackTheRows) {
  ExpectTheRowsAreGivenBack(SmallGeometry());
  ExpectTheRowsAreGivenBack(IndexedGeometry());
}

TEST(ChunkWriter, ClearsWhatAnEarlierChunkLeftBetweenLayers) {
  const Geometry geometry = SmallGeometry();
  const auto arena = *Arena::Create(kArenaBytes);
  {
    const auto dirty = arena->Allocate(4096);
    std::fill(dirty->bytes().begin(), dirty->bytes().end(), std::byte{0xff});
  }
  const SmallChunk small = MakeSmallChunk(geometry, 1, 1);
  const auto chunk =
      WriteSmallChunk(*ChunkWriter::Begin(small.info, &geometry, arena.get()), small);
  for (uint32_t layer = 0; layer + 1 < geometry.layers; ++layer) {
    const std::byte* end = chunk->layer(layer).data() + chunk->layer(layer).size();
    EXPECT_TRUE(std::all_of(end, chunk->layer(layer + 1).data(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST(ChunkWriter, RefusesWhatItCannotHold) {
  const Geometry geometry = SmallGeometry();
  const auto arena = *Arena::Create(64);
  const SmallChunk small = MakeSmallChunk(geometry, 1, 1);
  EXPECT_EQ(ChunkWriter::Begin(small.info, &geometry, arena.get()).status().code(),
            absl::StatusCode::kResourceExhausted);
  ChunkInfo wrong = small.info;
  wrong.position = 7;
  EXPECT_EQ(ChunkWriter::Begin(wrong, &geometry, arena.get()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ChunkWriter, RefusesPiecesOutOfPlaceAndContinues) {
  const Geometry geometry = SmallGeometry();
  const auto arena = *Arena::Create(kArenaBytes);
  const SmallChunk small = MakeSmallChunk(geometry, 2, 1);  // 40 bytes a layer
  auto writer = ChunkWriter::Begin(small.info, &geometry, arena.get());
  const std::span<const std::byte> rows = small.layers[0];
  ASSERT_TRUE(writer->Write(0, 0, rows.first(20)).ok());
  const std::vector<std::byte> long_piece(41);
  for (const absl::Status& status :
       {writer->Write(3, 0, rows), writer->Write(0, 0, rows.first(20)),
        writer->Write(0, 21, rows.first(1)), writer->Write(0, UINT64_MAX, rows.first(1)),
        writer->Write(0, 20, rows), writer->Write(1, 0, long_piece),
        writer->Write(UINT32_MAX, 0, {})}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  ASSERT_TRUE(writer->Write(2, 0, small.layers[2]).ok());
  ASSERT_TRUE(writer->Write(0, 20, rows.subspan(20)).ok());
  ASSERT_TRUE(writer->Write(1, 0, small.layers[1]).ok());
  EXPECT_TRUE((*std::move(writer)).Finish().ok());
}

TEST(ChunkWriter, FinishRefusesMissingAndWrongBytes) {
  const Geometry geometry = SmallGeometry();
  const auto arena = *Arena::Create(kArenaBytes);
  SmallChunk small = MakeSmallChunk(geometry, 2, 1);
  auto writer = ChunkWriter::Begin(small.info, &geometry, arena.get());
  ASSERT_TRUE(writer->Write(0, 0, small.layers[0]).ok());
  const absl::Status missing = (*std::move(writer)).Finish().status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(missing.message()).find("layer 1: 0 of 40"), std::string::npos) << missing;

  small.layers[2][39] ^= std::byte{1};
  const absl::Status wrong =
      WriteSmallChunk(*ChunkWriter::Begin(small.info, &geometry, arena.get()), small).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(wrong.message()).find("layer 2"), std::string::npos) << wrong;
}

}  // namespace
}  // namespace ckv
