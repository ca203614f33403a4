// Goal: a search finds the chunks of its heads that the tenant may read, each once, and nothing of
// corpora that are gone or of other tenants.

#include "server/directory/prompt/head_index.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// Chunks with these heads. The same head has the same id in all corpora, unless `salt` differs.
Corpus CorpusOf(const std::string& tenant, const std::vector<uint64_t>& heads, uint8_t salt = 1) {
  Corpus corpus;
  corpus.name = "c";
  corpus.tenant = tenant;
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  for (size_t i = 0; i < heads.size(); ++i) {
    ChunkPlacement chunk;
    chunk.id.bytes[0] = salt;
    std::memcpy(chunk.id.bytes.data() + 8, &heads[i], sizeof(heads[i]));
    chunk.id.bytes[31] = static_cast<uint8_t>(i);
    chunk.token_count = 16;
    chunk.set_token_hash({.head = heads[i]});
    corpus.chunks.push_back(chunk);
  }
  return corpus;
}

PromptChunks Find(const HeadIndex& index, const std::string& tenant, std::vector<uint64_t> heads,
                  std::optional<ChunkId> model = {}) {
  PromptSearch search(tenant, model);
  search.Look(index, heads);
  search.Look(index, heads);  // adds nothing
  return std::move(search).Finish();
}

std::vector<uint64_t> HeadsOf(const PromptChunks& found) {
  std::vector<uint64_t> heads;
  for (const PromptChunk& chunk : found.chunks) heads.push_back(chunk.token_hash.head);
  return heads;
}

TEST(HeadIndex, ATenantFindsItsOwnAndWhatIsShared) {
  const Corpus shared = CorpusOf("", {1, 2, 0}), acme = CorpusOf("acme", {2, 3}, 2),
               other = CorpusOf("other", {2, 4}, 3);
  HeadIndex index;
  for (const Corpus* corpus : {&shared, &acme, &other}) index.Add(*corpus);
  const std::vector<uint64_t> all = {0, 1, 2, 3, 4, 5, 2};
  EXPECT_THAT(HeadsOf(Find(index, "", all)), UnorderedElementsAre(1, 2));
  EXPECT_THAT(HeadsOf(Find(index, "acme", all)), UnorderedElementsAre(1, 2, 2, 3));
  EXPECT_THAT(HeadsOf(Find(index, "other", all)), UnorderedElementsAre(1, 2, 2, 4));
  EXPECT_THAT(HeadsOf(Find(index, "third", all)), UnorderedElementsAre(1, 2));
  EXPECT_THAT(Find(index, "acme", {4, 5}).models, IsEmpty());
}

TEST(HeadIndex, DoesNotFindRemovedChunks) {
  const Corpus one = CorpusOf("", {1, 1, 2}), two = CorpusOf("", {2, 1}, 2);
  HeadIndex index;
  index.Add(one);
  index.Add(two);
  EXPECT_THAT(Find(index, "", {1, 2}).chunks, SizeIs(5));
  index.Remove(one);
  EXPECT_THAT(Find(index, "", {1, 2}).chunks, SizeIs(2));
  index.Remove(two);
  EXPECT_EQ(index.Find(""), nullptr);
}

TEST(HeadIndex, AFalseRecordHidesNoTrueOne) {
  const Corpus truth = CorpusOf("", {1});
  Corpus lie = truth;
  lie.chunks[0].set_token_hash({.head = 1, .whole = 1});
  HeadIndex index;
  index.Add(lie);
  index.Add(truth);
  EXPECT_THAT(Find(index, "", {1}).chunks, SizeIs(2));
  index.Add(truth);  // as another corpus with the chunk
  EXPECT_THAT(Find(index, "", {1}).chunks, SizeIs(2));
}

TEST(HeadIndex, PlacesThatAreLookedAtAreLimited) {
  const Corpus popular = CorpusOf("", {1}), other = CorpusOf("", {1, 2}, 9);
  HeadIndex index;
  for (size_t i = 0; i + 2 < kPlacesPerLookMax; ++i) index.Add(popular);
  index.Add(other);
  const PromptChunks all = Find(index, "", {1, 2});
  EXPECT_FALSE(all.truncated);
  EXPECT_THAT(all.chunks, SizeIs(3)) << "one chunk in many corpora hides no other";
  index.Add(popular);
  EXPECT_TRUE(Find(index, "", {1, 2}).truncated);
}

TEST(HeadIndex, AnotherModelsChunksHideNone) {
  const Corpus many = CorpusOf("", std::vector<uint64_t>(kChunksPerHeadMax, 1)),
               more = CorpusOf("", {1}, 3);
  Corpus one = CorpusOf("", {1}, 2);
  one.geometry.revision = "another";
  HeadIndex index;
  index.Add(many);
  index.Add(more);
  index.Add(one);
  const PromptChunks found = Find(index, "", {1}, ModelFingerprint(one.geometry));
  ASSERT_THAT(found.chunks, SizeIs(1));
  EXPECT_EQ(found.chunks[0].id, one.chunks[0].id);
  EXPECT_FALSE(found.truncated);
  EXPECT_TRUE(Find(index, "", {1}, ModelFingerprint(many.geometry)).truncated);
}

TEST(HeadIndex, FindsAChunkOfTwoCorporaOnce) {
  const Corpus one = CorpusOf("", {1, 2}), two = CorpusOf("acme", {1, 2});
  HeadIndex index;
  index.Add(one);
  index.Add(two);
  EXPECT_THAT(Find(index, "acme", {1, 2}).chunks, SizeIs(2));
}

TEST(HeadIndex, FiltersByModel) {
  const Corpus lite = CorpusOf("", {1});
  Corpus large = CorpusOf("", {1}, 2);
  large.geometry = *NamedGeometry("deepseek-v3");
  HeadIndex index;
  index.Add(lite);
  index.Add(large);
  EXPECT_THAT(Find(index, "", {1}).models, SizeIs(2));
  const PromptChunks found = Find(index, "", {1}, ModelFingerprint(large.geometry));
  ASSERT_THAT(found.chunks, SizeIs(1));
  EXPECT_EQ(found.chunks[0].id, large.chunks[0].id);
  EXPECT_THAT(found.models, testing::ElementsAre(large.geometry));
}

// Texts that begin alike: an answer stays small, and says that it is not all.
TEST(HeadIndex, ManyChunksOfOneHeadAreCut) {
  const Corpus alike = CorpusOf("", std::vector<uint64_t>(kChunksPerHeadMax, 7));
  Corpus more = CorpusOf("", {7}, 2);
  HeadIndex index;
  index.Add(alike);
  EXPECT_FALSE(Find(index, "", {7}).truncated);
  index.Add(more);
  const PromptChunks found = Find(index, "", {7});
  EXPECT_TRUE(found.truncated);
  EXPECT_THAT(found.chunks, SizeIs(kChunksPerHeadMax));
}

}  // namespace
}  // namespace ckv
