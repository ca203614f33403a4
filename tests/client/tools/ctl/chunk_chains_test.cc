// Goal: a document counts as present only as far as a corpus has its very tokens, as a chain from
// position 0 on, under the tenant's key. Method: corpora made of ids alone.

#include "client/tools/ctl/ingest/chunk_chains.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "store/memory/chunk_id.h"
#include "tests/support/test_corpus.h"

namespace ckv::ctl {
namespace {

std::vector<int32_t> Tokens(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Appends a chain of chunks with these tokens each.
void Append(Corpus& corpus, const std::vector<std::vector<int32_t>>& chunks, uint64_t position = 0,
            const TenantKey& key = {}) {
  ChunkId parent;
  for (const std::vector<int32_t>& tokens : chunks) {
    const ChunkId plain =
        ComputeChunkId(ModelFingerprint(corpus.geometry), parent, position, tokens);
    ChunkPlacement chunk;
    chunk.id = TaggedChunkId(plain, VerificationTagOf(plain, key));
    chunk.set_parent(parent);
    chunk.token_count = static_cast<uint32_t>(tokens.size());
    chunk.position = position;
    corpus.chunks.push_back(chunk);
    parent = chunk.id;
    position += tokens.size();
  }
}

Corpus Empty() {
  Corpus corpus;
  corpus.geometry = test::TestGeometry();
  return corpus;
}

TEST(ChunkChains, FollowsAChainAsFarAsTheTokensAreTheSame) {
  Corpus corpus = Empty();
  Append(corpus, {Tokens(500, 8)});
  Append(corpus, {Tokens(0, 10), Tokens(10, 10), Tokens(20, 5)});
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens(Tokens(0, 25)), 25u);
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens(Tokens(0, 40)), 25u);
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens(Tokens(0, 19)), 10u) << "a chunk counts whole";
  std::vector<int32_t> other = Tokens(0, 25);
  other[12] = 7;
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens(other), 10u);
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens(Tokens(10, 10)), 0u)
      << "no beginning of a document";
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens({}), 0u);
  EXPECT_EQ(ChunkChains(Empty(), {}).MatchedTokens(Tokens(0, 5)), 0u);
  EXPECT_EQ(ChunkChains().MatchedTokens(Tokens(0, 5)), 0u);
}

TEST(ChunkChains, TakesTheLongerOfTwoCutsOfOneText) {
  Corpus corpus = Empty();
  Append(corpus, {Tokens(0, 10)});
  Append(corpus, {Tokens(0, 20), Tokens(20, 10)});
  EXPECT_EQ(ChunkChains(corpus, {}).MatchedTokens(Tokens(0, 30)), 30u);
}

TEST(ChunkChains, ChunksElsewhereOrOfAnotherModelOrKeyDoNotCount) {
  Corpus elsewhere = Empty();
  Append(elsewhere, {Tokens(0, 10)}, /*position=*/64);
  EXPECT_EQ(ChunkChains(elsewhere, {}).MatchedTokens(Tokens(0, 10)), 0u);

  Corpus other = Empty();
  Append(other, {Tokens(0, 10)});
  other.geometry.revision = "other";
  EXPECT_EQ(ChunkChains(other, {}).MatchedTokens(Tokens(0, 10)), 0u);

  TenantKey key;
  key.bytes.fill(7);
  Corpus sealed = Empty();
  Append(sealed, {Tokens(0, 10)}, 0, key);
  EXPECT_EQ(ChunkChains(sealed, key).MatchedTokens(Tokens(0, 10)), 10u);
  EXPECT_EQ(ChunkChains(sealed, {}).MatchedTokens(Tokens(0, 10)), 0u);
}

}  // namespace
}  // namespace ckv::ctl
