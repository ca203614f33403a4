// Goal: a context's chunks are cut into aligned ranges of about as many tokens as a decision is
// worth, and equal ranges have equal keys. Method: contexts over made corpora.

#include "client/prefetch/context_ranges.h"

#include <memory>
#include <vector>

#include "client/prefetch/local_row_cache.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

std::shared_ptr<const Corpus> MakeCorpus(const std::vector<uint32_t>& tokens) {
  auto corpus = std::make_shared<Corpus>();
  corpus->name = "c";
  corpus->geometry = test::TestGeometry();
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    ChunkPlacement chunk;
    chunk.id.bytes[0] = static_cast<uint8_t>(i + 1);
    chunk.token_count = tokens[i];
    corpus->chunks.push_back(chunk);
  }
  return corpus;
}

std::vector<ContextRange> RangesOver(const std::shared_ptr<const Corpus>& corpus,
                                     std::vector<ChunkUse> uses = {}) {
  const ContextPart part = {corpus, uses};
  return RangesOf(**ContextState::Make({&part, 1}));
}

TEST(ContextRanges, GroupsSmallChunksAndKeepsLargeOnesAlone) {
  EXPECT_EQ(RangesOver(MakeCorpus(std::vector<uint32_t>(5, 2048))).size(), 5u);
  EXPECT_EQ(RangesOver(MakeCorpus(std::vector<uint32_t>(5, 100'000))).size(), 5u);
  const auto ranges = RangesOver(MakeCorpus(std::vector<uint32_t>(10, 512)));
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].chunk_end, 4u);
  EXPECT_EQ(ranges[0].tokens, 2048u);
  EXPECT_EQ(ranges[0].bytes, 4 * LocalRowCache::BytesOf(test::TestGeometry(), 512));
  EXPECT_EQ(ranges[2].chunk_begin, 8u);
  EXPECT_EQ(ranges[2].chunk_end, 10u);
  EXPECT_EQ(RangesOver(MakeCorpus(std::vector<uint32_t>(40, 1))).size(), 3u) << "16 at most";
}

TEST(ContextRanges, ARangeIsOfNeighboursAndAligned) {
  // Chunks 2 and 3 end a range of 4; 4 and 5 begin one; 7 is no neighbour of 5.
  const auto ranges = RangesOver(MakeCorpus(std::vector<uint32_t>(10, 512)),
                                 {{2, 0}, {3, 0}, {4, 0}, {5, 0}, {7, 0}});
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].chunk_end - ranges[0].chunk_begin, 2u);
  EXPECT_EQ(ranges[1].chunk_end - ranges[1].chunk_begin, 2u);
  EXPECT_EQ(ranges[2].chunk_end - ranges[2].chunk_begin, 1u);
}

TEST(ContextRanges, EqualChunksMakeEqualKeys) {
  const auto corpus = MakeCorpus({3000, 3000, 3000});
  const auto all = RangesOver(corpus), last = RangesOver(corpus, {{2, 7}});
  EXPECT_EQ(all[2].key, last[0].key) << "wherever it stands";
  EXPECT_NE(all[0].key, all[1].key);
}

TEST(ContextRanges, CorporaAreCutByThemselves) {
  const auto one = MakeCorpus(std::vector<uint32_t>(3, 512));
  const auto two = MakeCorpus(std::vector<uint32_t>(3, 4096));
  auto other = std::make_shared<Corpus>(*two);
  for (ChunkPlacement& chunk : other->chunks) chunk.id.bytes[1] = 1;
  const ContextPart both[] = {{one, {}}, {other, {}}};
  EXPECT_EQ(RangesOf(**ContextState::Make(both)).size(), 4u);
}

}  // namespace
}  // namespace ckv
