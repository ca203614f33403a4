// Goal: a row's chunk is found whatever the chunks' sizes and order; chunks are in the order of the
// tree.
// Method: random chunks, some much larger than others; every row is looked up and compared with a
// walk over the chunks.

#include "client/context/context_chunks.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

std::shared_ptr<Corpus> CorpusOf(const std::vector<uint32_t>& tokens) {
  auto corpus = std::make_shared<Corpus>();
  corpus->name = "laws";
  corpus->geometry = test::TestGeometry();
  corpus->chunks.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) corpus->chunks[i].token_count = tokens[i];
  return corpus;
}

// Looks up every row of the context.
void ExpectRows(const ContextChunks& made, const Corpus& corpus,
                const std::vector<ChunkUse>& uses) {
  uint32_t row = 0;
  for (const ChunkUse& use : uses) {
    for (uint32_t i = 0; i < corpus.chunks[use.ordinal].token_count; ++i, ++row) {
      const RowIndex::Place place = made.Find(row);
      ASSERT_EQ(made.chunks()[place.chunk].ordinal, use.ordinal) << "row " << row;
      ASSERT_EQ(place.row, i) << "row " << row;
    }
  }
  ASSERT_EQ(made.token_count(), row);
}

TEST(ContextChunks, FindsEveryRow) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    std::vector<uint32_t> tokens(1 + rng() % 300);
    for (uint32_t& count : tokens) {
      // Many small ones and a few large ones, or all alike but the last.
      count = seed % 3 == 0 ? 1 + seed * 5 : rng() % 20 == 0 ? rng() % 3000 : rng() % 3;
    }
    if (seed % 6 == 0) tokens.back() = 1 + uint32_t(rng() % tokens[0]);
    const auto corpus = CorpusOf(tokens);
    std::vector<ChunkUse> uses;
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      if (rng() % 4 != 0) uses.push_back({i, 0});
    }
    if (seed % 2 == 0) std::shuffle(uses.begin(), uses.end(), rng);
    if (uses.empty()) continue;
    const ContextPart part = {corpus, uses};
    const auto made = ContextChunks::Make({&part, 1});
    ASSERT_TRUE(made.ok()) << made.status();
    ExpectRows(*made, *corpus, uses);
    if (HasFatalFailure()) return;
  }
}

// Rows up to the last one that an index can address, in chunks of every awkward size.
TEST(ContextChunks, FindsTheFarthestRows) {
  for (const uint32_t each : {3u, 255u, 256u, 257u, 65'537u, 1'000'003u, 1u << 20}) {
    const uint32_t count = std::min<uint32_t>((1u << 31) / each, kCorpusChunkCountMax / 64);
    const auto corpus = CorpusOf(std::vector<uint32_t>(count, each));
    const ContextPart part = {corpus, {}};
    const auto made = ContextChunks::Make({&part, 1});
    ASSERT_TRUE(made.ok()) << made.status();
    for (const uint32_t chunk : {0u, 1u, count / 2, count - 1}) {
      for (const uint32_t row : {0u, 1u, each - 1}) {
        const uint64_t index = uint64_t{chunk} * each + row;
        if (index > 0x7fffffff) continue;
        const RowIndex::Place place = made->Find(static_cast<uint32_t>(index));
        ASSERT_EQ(place.chunk, chunk) << each << " tokens, row " << index;
        ASSERT_EQ(place.row, row) << each << " tokens, row " << index;
      }
    }
  }
}

TEST(ContextChunks, ChunksAreInTheOrderOfTheTree) {
  const auto first = CorpusOf({3, 0, 5, 2}), second = CorpusOf({7, 1});
  for (uint32_t i = 0; i < 4; ++i) first->chunks[i].id = ChunkId{{uint8_t(i + 1)}};
  for (uint32_t i = 0; i < 2; ++i) second->chunks[i].id = ChunkId{{uint8_t(i + 9)}};
  const ChunkUse uses[] = {{3, 1}, {0, 0}, {1, 5}, {2, 1}};
  const ContextPart parts[] = {{first, uses}, {second, {}}};
  const auto made = ContextChunks::Make(parts);
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<std::pair<uint32_t, uint32_t>> order;
  for (const ContextChunk& chunk : made->chunks()) order.push_back({chunk.part, chunk.ordinal});
  const std::vector<std::pair<uint32_t, uint32_t>> wanted = {
      {0, 0}, {0, 2}, {0, 3}, {1, 0}, {1, 1}};
  EXPECT_EQ(order, wanted);  // the chunk without tokens is left out
  // Rows are numbered in the order of the spec: chunk 3 of the first corpus is first.
  EXPECT_EQ(made->Find(0).chunk, 2u);
  EXPECT_EQ(made->Find(2).chunk, 0u);
  EXPECT_EQ(made->Find(10).chunk, 3u);
  EXPECT_EQ(made->rotations().size(), 2u);
  EXPECT_EQ(made->chunks()[1].rotation, made->chunks()[2].rotation);
}

TEST(ContextChunks, ThousandsOfOffsets) {
  const auto corpus = CorpusOf(std::vector<uint32_t>(5000, 1));
  std::vector<ChunkUse> uses;
  for (uint32_t i = 0; i < 5000; ++i) uses.push_back({i, int64_t{i}});
  const ContextPart part = {corpus, uses};
  const auto made = ContextChunks::Make({&part, 1});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->rotations().size(), 5000u);
}

TEST(ContextChunks, WithoutTokensItHasNoRows) {
  const ContextPart part = {CorpusOf({0, 0}), {}};
  const auto made = ContextChunks::Make({&part, 1});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->token_count(), 0u);
  EXPECT_TRUE(made->chunks().empty());
}

}  // namespace
}  // namespace ckv
