// Goal: chunks and copies that no live holder has are counted, once each, and callers are kept from
// holders that lack a chunk if another has it.
// Method: a corpus of three chunks on two holders, with each way of being incomplete.

#include "server/directory/coverage/coverage.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/directory/coverage/lacking_chunks.h"

namespace ckv {
namespace {

ChunkId IdOf(uint8_t n) {
  ChunkId id;
  id.bytes[0] = n;
  return id;
}

// Chunks 1 on h1, 2 on h1 and h2, 3 on h2, and 4, which is empty, on no holder.
CoverageView View(std::vector<std::string> live) {
  auto corpus = std::make_shared<Corpus>();
  corpus->name = "docs";
  const auto add = [&](uint8_t n, uint32_t tokens, std::vector<HolderId> holders) {
    ChunkPlacement& chunk = corpus->chunks.emplace_back();
    chunk.id = IdOf(n);
    chunk.token_count = tokens;
    chunk.set_holders(std::move(holders));
  };
  add(1, 5, {{"h1"}});
  add(2, 5, {{"h1"}, {"h2"}});
  add(3, 5, {{"h2"}});
  add(4, 0, {{"gone"}});
  CoverageView view;
  view.corpora.push_back({corpus, {}});
  for (std::string& name : live) view.holders.live.insert({std::move(name)});
  return view;
}

void Lack(CoverageView& view, const std::string& holder, const std::vector<uint8_t>& chunks) {
  LackingChunks::Chunks ids;
  for (const uint8_t n : chunks) ids.insert(IdOf(n));
  view.holders.lacking[{holder}] = std::make_shared<const LackingChunks::Chunks>(std::move(ids));
}

TEST(Coverage, AWholeCorpusLacksNothing) {
  const Coverage coverage = Cover(View({"h1", "h2"}));
  EXPECT_TRUE(coverage.corpora.empty());
  EXPECT_TRUE(coverage.holders.empty());
  EXPECT_EQ(coverage.missing_copy_count, 0u);
}

TEST(Coverage, AHolderThatIsGoneTakesItsCopies) {
  const Coverage coverage = Cover(View({"h1"}));
  ASSERT_EQ(coverage.corpora.size(), 1u);
  EXPECT_EQ(coverage.corpora[0].chunk_count, 4u);
  EXPECT_EQ(coverage.corpora[0].missing_count, 1u) << "chunk 3; chunk 4 has no tokens";
  EXPECT_EQ(coverage.corpora[0].missing_copy_count, 2u);
  EXPECT_EQ(coverage.corpora[0].away, std::vector<std::string>{"h2"});
  EXPECT_TRUE(coverage.corpora[0].lackers.empty());
  EXPECT_EQ(coverage.missing_chunk_count, 1u);
}

TEST(Coverage, ALiveHolderThatLacksChunksIsCounted) {
  CoverageView view = View({"h1", "h2"});
  Lack(view, "h1", {1, 2, 9});  // 9 is placed nowhere: a corpus that was dropped
  const Coverage coverage = Cover(view);
  ASSERT_EQ(coverage.corpora.size(), 1u);
  EXPECT_EQ(coverage.corpora[0].missing_count, 1u);
  EXPECT_EQ(coverage.corpora[0].missing_copy_count, 2u);
  EXPECT_EQ(coverage.corpora[0].lackers, std::vector<std::string>{"h1"});
  const Coverage::OfHolder& counts = coverage.holders.at({"h1"});
  EXPECT_EQ(counts.lacking_count, 2u);
  EXPECT_EQ(counts.sole_count, 1u) << "chunk 2 is on h2, too";
}

TEST(Coverage, AMemberThatAnnouncedTheChunkHasIt) {
  CoverageView view = View({"h2"});
  view.corpora[0].leased = {0};
  const Coverage coverage = Cover(view);
  ASSERT_EQ(coverage.corpora.size(), 1u);
  EXPECT_EQ(coverage.corpora[0].missing_count, 0u);
  EXPECT_EQ(coverage.corpora[0].missing_copy_count, 2u);
}

TEST(Coverage, CorporaBeyondTheLimitAreSkippedAndCounted) {
  CoverageView view = View({"h1"});
  auto large = std::make_shared<Corpus>();
  large->chunks.resize(kCoverageChunkCountMax + 1);
  view.corpora.insert(view.corpora.begin(), {large, {}});
  const Coverage coverage = Cover(view);
  EXPECT_EQ(coverage.skipped_corpus_count, 1u);
  EXPECT_EQ(coverage.corpora.size(), 1u);
}

TEST(Coverage, LeavesOutWhoLacksAChunkIfAnotherHasIt) {
  CoverageView view = View({"h1", "h2"});
  Lack(view, "h1", {1, 2});
  ChunkPlacement sole = view.corpora[0].corpus->chunks[0], both = view.corpora[0].corpus->chunks[1];
  EXPECT_FALSE(LeaveOutLacking(view.holders, sole));
  EXPECT_EQ(sole.holders().size(), 1u) << "its caller learns from it that the chunk is gone";
  EXPECT_TRUE(LeaveOutLacking(view.holders, both));
  EXPECT_EQ(both.holders(), std::vector<HolderId>{{"h2"}});
  sole.set_leased({{"h9"}});
  EXPECT_TRUE(LeaveOutLacking(view.holders, sole));
  EXPECT_TRUE(sole.holders().empty());
  ChunkPlacement alone = view.corpora[0].corpus->chunks[1];
  view.holders.live.erase({"h2"});
  EXPECT_FALSE(LeaveOutLacking(view.holders, alone)) << "h2 is not there";
}

TEST(LackingChunks, TheLastPageReplacesEarlierReports) {
  LackingChunks table(100);
  const std::vector<ChunkId> one = {IdOf(1)}, two = {IdOf(2)};
  EXPECT_TRUE(table.Take({"h"}, one, /*first=*/true, /*last=*/false).empty());
  EXPECT_FALSE(table.Lacks({"h"}, IdOf(1))) << "the report has not ended";
  EXPECT_EQ(table.Take({"h"}, two, /*first=*/false, /*last=*/true).size(), 2u);
  EXPECT_TRUE(table.Lacks({"h"}, IdOf(1)));
  EXPECT_EQ(table.count(), 2u);
  EXPECT_EQ(table.Take({"h"}, two, true, true), one) << "what has changed";
  EXPECT_TRUE(table.Take({"h"}, two, true, true).empty());
  EXPECT_EQ(table.Take({"h"}, {}, true, true), two);
  EXPECT_TRUE(table.empty());
  table.Take({"h"}, one, true, true);
  table.Remove({"h"});
  EXPECT_FALSE(table.Lacks({"h"}, IdOf(1)));
  EXPECT_EQ(table.count(), 0u);
}

TEST(LackingChunks, IsBoundedOverAllHolders) {
  LackingChunks table(3);
  const std::vector<ChunkId> ids = {IdOf(1), IdOf(2)};
  table.Take({"a"}, ids, true, true);
  table.Take({"b"}, ids, true, true);
  EXPECT_EQ(table.count(), 3u);
  table.Remove({"a"});
  EXPECT_EQ(table.count(), 1u);
}

}  // namespace
}  // namespace ckv
