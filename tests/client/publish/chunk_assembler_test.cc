// Goal: what an engine hands out becomes the chunk that a load would have made, and nothing else
// becomes a chunk.

#include "client/publish/chunk_assembler.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/memory/token_hash.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytesMax = uint64_t{1} << 30;

class ChunkAssemblerTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChunkAssembler> Begin(size_t chunk) {
    const ChunkInfo& info = corpus_.chunks[chunk].info;
    auto begun = ChunkAssembler::Begin(corpus_.geometry,
                                       {info.parent, info.position, info.token_ids, {}}, kBytesMax);
    EXPECT_TRUE(begun.ok()) << begun.status();
    return *std::move(begun);
  }
  std::span<const std::byte> Layer(size_t chunk, uint32_t layer) {
    return std::as_bytes(std::span(corpus_.chunks[chunk].layers[layer]));
  }

  test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {40, 7}, 3);
};

TEST_F(ChunkAssemblerTest, LayersInAnyOrderAndInPieces) {
  for (const size_t chunk : {0u, 1u}) {
    auto assembler = Begin(chunk);
    for (uint32_t layer = corpus_.geometry.layers; layer-- > 0;) {
      const auto rows = Layer(chunk, layer);
      for (size_t at = 0; at < rows.size(); at += 100) {
        const auto piece = rows.subspan(at, std::min<size_t>(100, rows.size() - at));
        ASSERT_TRUE(assembler->Add(layer, at, piece).ok());
      }
    }
    auto whole = assembler->Finish();
    ASSERT_TRUE(whole.ok()) << whole.status();
    const ChunkInfo& due = corpus_.chunks[chunk].info;
    EXPECT_EQ(whole->chunk.info.id, due.id);
    EXPECT_EQ(whole->chunk.info.tensor_checksums, due.tensor_checksums);
    EXPECT_EQ(whole->token_hash, TokenHashOf(due.token_ids, {}));
    for (uint32_t layer = 0; layer < corpus_.geometry.layers; ++layer) {
      const auto rows = whole->chunk.rows(layer), due_rows = Layer(chunk, layer);
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), due_rows.begin(), due_rows.end()));
    }
  }
}

TEST_F(ChunkAssemblerTest, RefusesWhatDoesNotFit) {
  auto assembler = Begin(1);
  const auto rows = Layer(1, 0);
  const std::vector<std::byte> more(rows.size() + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(corpus_.geometry.layers, 0, rows)));
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(0, 1, rows.first(1))));
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(0, UINT64_MAX, rows.first(1))));
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(0, 0, more)));
  ASSERT_TRUE(assembler->Add(0, 0, rows).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(0, rows.size(), rows.first(1))));
  EXPECT_TRUE(absl::IsInvalidArgument(assembler->Add(0, 0, rows)));  // twice
  const absl::Status status = assembler->Finish().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 of"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("of layer 1 are there"));
}

TEST_F(ChunkAssemblerTest, LimitsHoldBeforeMemoryIsTaken) {
  const Geometry& geometry = corpus_.geometry;
  EXPECT_TRUE(absl::IsInvalidArgument(ChunkAssembler::Begin(geometry, {}, kBytesMax).status()));
  ChunkInputs inputs;
  inputs.token_ids.resize(kChunkTokenCountMax + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ChunkAssembler::Begin(geometry, inputs, kBytesMax).status()));
  inputs.token_ids.resize(3);
  const uint64_t bytes = 3 * geometry.token_bytes();
  EXPECT_TRUE(ChunkAssembler::Begin(geometry, inputs, bytes).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(ChunkAssembler::Begin(geometry, inputs, bytes - 1).status()));
  Geometry none = geometry;
  none.layers = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(ChunkAssembler::Begin(none, inputs, kBytesMax).status()));
}

}  // namespace
}  // namespace ckv
