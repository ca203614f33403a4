// Goal: an index is made once a snapshot, and never for another one at the same address.

#include "server/rpc/ordinal_index.h"

#include <memory>

#include "gtest/gtest.h"

namespace ckv {
namespace {

std::shared_ptr<const Corpus> CorpusOf(uint8_t first, uint32_t count) {
  auto corpus = std::make_shared<Corpus>();
  corpus->chunks.resize(count);
  for (uint32_t i = 0; i < count; ++i) corpus->chunks[i].id.bytes = {first, uint8_t(i)};
  return corpus;
}

TEST(OrdinalIndices, FindEachChunkAndNoOther) {
  OrdinalIndices indices;
  const auto corpus = CorpusOf(1, 5);
  const auto index = indices.For(corpus);
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(index->Find(corpus->chunks[i].id), i);
  EXPECT_EQ(index->Find(ChunkId{}), std::nullopt);
}

TEST(OrdinalIndices, AreMadeOnceASnapshot) {
  OrdinalIndices indices;
  const auto corpus = CorpusOf(1, 5), other = CorpusOf(2, 5);
  const auto index = indices.For(corpus);
  EXPECT_NE(indices.For(other), index);
  EXPECT_EQ(indices.For(corpus), index);
}

TEST(OrdinalIndices, AnotherSnapshotAtTheSameAddressHasItsOwn) {
  OrdinalIndices indices;
  for (uint8_t round = 0; round < 50; ++round) {
    const auto corpus = CorpusOf(round, 2);
    EXPECT_EQ(indices.For(corpus)->Find(corpus->chunks[1].id), 1u);
  }
}

TEST(OrdinalIndices, KeepTheOnesUsedLast) {
  OrdinalIndices indices;
  const auto kept = CorpusOf(1, 2), dropped = CorpusOf(2, 2);
  const auto first = indices.For(kept), second = indices.For(dropped);
  std::vector<std::shared_ptr<const Corpus>> others;
  for (uint8_t i = 0; i + 1u < OrdinalIndices::kCorpusCountMax; ++i) {
    others.push_back(CorpusOf(uint8_t(10 + i), 2));
    (void)indices.For(others.back());
    EXPECT_EQ(indices.For(kept), first);
  }
  EXPECT_NE(indices.For(dropped), second);
}

}  // namespace
}  // namespace ckv
