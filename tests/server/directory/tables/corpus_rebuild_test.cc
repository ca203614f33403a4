// Goal: a corpus is whole only if every chunk was reported and all reports agree, in the highest
// version that was reported; the rest is reported and never served.

#include "server/directory/tables/corpus_rebuild.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using absl::StatusCode;

// Chunks on h0, h1, h2 in turn, each with the next one as a replica.
Corpus Spread(const std::string& name, uint64_t version, size_t chunk_count, uint32_t seed = 1) {
  Corpus corpus =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
          .Publish(name, "", {{{"h0"}, {"h1"}}, {{"h1"}, {"h2"}}, {{"h2"}, {"h0"}}});
  corpus.version = version;
  corpus.replica_count = 2;
  return corpus;
}

CorpusPart PartOn(const Corpus& corpus, const std::string& holder) {
  CorpusPart part;
  part.corpus = corpus;
  part.corpus.chunks.clear();
  part.chunk_count = static_cast<uint32_t>(corpus.chunks.size());
  for (uint32_t i = 0; i < part.chunk_count; ++i) {
    const auto& holders = corpus.chunks[i].holders();
    if (std::find(holders.begin(), holders.end(), HolderId{holder}) == holders.end()) continue;
    part.ordinals.push_back(i);
    part.corpus.chunks.push_back(corpus.chunks[i]);
  }
  return part;
}

struct CorpusRebuildTest : testing::Test {
  absl::Status Report(const Corpus& corpus, const std::string& holder) {
    return rebuild.Add({holder}, PartOn(corpus, holder));
  }
  CorpusRebuild rebuild{100, 10};
};

TEST_F(CorpusRebuildTest, RestoresAWholeCorpus) {
  const Corpus corpus = Spread("c", 7, 10);
  ASSERT_TRUE(Report(corpus, "h0").ok());
  EXPECT_FALSE(rebuild.TakeWhole());
  UnprovenCorpus unproven = *rebuild.Find({"", "c"});
  EXPECT_EQ(unproven.chunk_count, 10u);
  EXPECT_EQ(unproven.missing_count, 3u) << "those of h1 and h2";
  EXPECT_EQ(unproven.reporters, std::vector<HolderId>{{"h0"}});
  EXPECT_EQ(rebuild.CountOf(corpus.chunks[0].id), 1u);
  EXPECT_EQ(rebuild.CountOf(corpus.chunks[1].id), 0u);
  // Two of three holders have all chunks. A repeated report changes nothing.
  ASSERT_TRUE(Report(corpus, "h0").ok());
  ASSERT_TRUE(Report(corpus, "h2").ok());
  EXPECT_EQ(rebuild.TakeWhole(), corpus) << "with the holders that did not report, too";
  EXPECT_FALSE(rebuild.TakeWhole()) << "once";
  rebuild.Remove({"", "c"}, 7, 0);
  EXPECT_EQ(rebuild.count(), 0u);
  EXPECT_EQ(rebuild.CountOf(corpus.chunks[0].id), 0u);
}

TEST_F(CorpusRebuildTest, JoinsPagesToAPart) {
  const Corpus corpus = Spread("c", 7, 9);
  for (const std::string holder : {"h0", "h1"}) {
    const CorpusPart all = PartOn(corpus, holder);
    for (size_t i = all.ordinals.size(); i-- > 0;) {
      CorpusPart page = all;
      page.corpus.chunks = {all.corpus.chunks[i]};
      page.ordinals = {all.ordinals[i]};
      ASSERT_TRUE(rebuild.Add({holder}, page).ok());
    }
  }
  EXPECT_EQ(rebuild.TakeWhole(), corpus);
}

// A holder that was offline when the corpus changed has the previous version.
TEST_F(CorpusRebuildTest, OnlyTheHighestVersionCounts) {
  const Corpus old = Spread("c", 7, 6), present = Spread("c", 9, 8, /*seed=*/2);
  ASSERT_TRUE(Report(old, "h0").ok() && Report(old, "h1").ok());
  ASSERT_TRUE(Report(present, "h2").ok());
  EXPECT_FALSE(rebuild.TakeWhole()) << "the old one is whole, and is not the corpus";
  UnprovenCorpus unproven = *rebuild.Find({"", "c"});
  EXPECT_EQ(unproven.version, 9u);
  EXPECT_EQ(unproven.version_count, 2u);
  EXPECT_GT(unproven.missing_count, 0u);
  ASSERT_TRUE(Report(present, "h1").ok());
  EXPECT_EQ(rebuild.TakeWhole(), present);
  rebuild.Remove({"", "c"}, 9, 0);
  EXPECT_EQ(rebuild.count(), 0u);
}

TEST_F(CorpusRebuildTest, AContradictionIsReportedAndNeverServed) {
  const Corpus corpus = Spread("c", 7, 6);
  Corpus other = corpus;
  other.chunks[1].token_count = 1;
  ASSERT_TRUE(Report(corpus, "h0").ok() && Report(corpus, "h2").ok());
  ASSERT_TRUE(Report(other, "h1").ok());
  EXPECT_FALSE(rebuild.TakeWhole());
  EXPECT_TRUE(rebuild.Find({"", "c"})->conflict);
  EXPECT_EQ(rebuild.Find({"", "c"})->missing_count, 0u);
  EXPECT_EQ(rebuild.Find({"", "c"})->why, "holder h1 contradicts an earlier report about chunk 1");
  // These parts have another length, another model, or want another number of copies.
  for (const int difference : {0, 1, 2}) {
    Corpus second = Spread("d", 7, 6);
    ASSERT_TRUE(Report(second, "h0").ok());
    CorpusPart part = PartOn(second, "h1");
    if (difference == 0) ++part.chunk_count;
    if (difference == 1) part.corpus.geometry.revision = "r2";
    if (difference == 2) ++part.corpus.replica_count;
    ASSERT_TRUE(rebuild.Add({"h1"}, part).ok());
    ASSERT_TRUE(Report(second, "h2").ok());
    EXPECT_FALSE(rebuild.TakeWhole());
    EXPECT_TRUE(rebuild.Find({"", "d"})->conflict);
    rebuild.Remove({"", "d"}, 7, 0);
  }
  // One chunk at two places.
  Corpus twice = Spread("e", 7, 6);
  twice.chunks[3] = twice.chunks[0];
  for (const std::string holder : {"h0", "h1", "h2"}) {
    // A part that has both is refused; pages of one chunk are not.
    const CorpusPart all = PartOn(twice, holder);
    for (size_t i = 0; i < all.ordinals.size(); ++i) {
      CorpusPart page = all;
      page.corpus.chunks = {all.corpus.chunks[i]};
      page.ordinals = {all.ordinals[i]};
      ASSERT_TRUE(rebuild.Add({holder}, page).ok());
    }
  }
  EXPECT_FALSE(rebuild.TakeWhole());
  EXPECT_TRUE(rebuild.Find({"", "e"})->conflict);
}

// Until an operator decides, neither chunk is garbage.
TEST_F(CorpusRebuildTest, KeepsBothSidesOfAContradiction) {
  const Corpus corpus = Spread("c", 7, 6);
  Corpus other = corpus;
  other.chunks[1].id.bytes[0] ^= 1;
  ASSERT_TRUE(Report(corpus, "h2").ok());
  for (int again = 0; again < 2; ++again) ASSERT_TRUE(Report(other, "h1").ok());
  EXPECT_EQ(rebuild.CountOf(corpus.chunks[1].id), 1u);
  EXPECT_EQ(rebuild.CountOf(other.chunks[1].id), 1u);
  rebuild.Remove({"", "c"}, 7, 0);
  EXPECT_EQ(rebuild.CountOf(corpus.chunks[1].id) + rebuild.CountOf(other.chunks[1].id), 0u);
}

TEST_F(CorpusRebuildTest, ADropRemovesWhatItsFolderReported) {
  for (const uint64_t version : {5, 7, 9}) {
    CorpusPart part = PartOn(Spread("c", version, 6), "h0");
    part.folder_id = version == 5 ? 1 : 2;
    ASSERT_TRUE(rebuild.Add({"h0"}, part).ok());
  }
  EXPECT_TRUE(rebuild.IsReported({"", "c"}, 2));
  EXPECT_FALSE(rebuild.IsReported({"", "c"}, 1));
  EXPECT_EQ(rebuild.HighestOf({"", "c"}, 1), 5u);
  EXPECT_EQ(rebuild.HighestOf({"", "c"}, 2), 9u);
  EXPECT_EQ(rebuild.HighestOf({"", "c"}, 3), 0u);
  EXPECT_EQ(rebuild.HighestOf({"", "c"}, 0), 9u);
  rebuild.Remove({"", "c"}, 8, 2);
  EXPECT_EQ(rebuild.Find({"", "c"})->version_count, 2u) << "5 is another one's";
  rebuild.Remove({"", "c"}, 5, 3);
  EXPECT_EQ(rebuild.Find({"", "c"})->version_count, 1u) << "the very version";
  rebuild.NoteRefusal({"", "c"}, "because");
  EXPECT_EQ(rebuild.Find({"", "c"})->why, "because");
  rebuild.Remove({"", "c"}, 9, 0);
  EXPECT_EQ(rebuild.count(), 0u);
}

TEST_F(CorpusRebuildTest, CorporaAndVersionsHaveLimits) {
  CorpusRebuild small(1000, 2);
  for (uint64_t version = 1; version <= CorpusRebuild::kVersionCountMax; ++version)
    ASSERT_TRUE(small.Add({"h0"}, PartOn(Spread("a", version, 2), "h0")).ok());
  EXPECT_EQ(small.Add({"h0"}, PartOn(Spread("a", 99, 2), "h0")).code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(small.Add({"h2"}, PartOn(Spread("a", 3, 3), "h2")).ok()) << "a version that is there";
  ASSERT_TRUE(small.Add({"h0"}, PartOn(Spread("b", 1, 2), "h0")).ok());
  EXPECT_EQ(small.Add({"h0"}, PartOn(Spread("c", 1, 2), "h0")).code(),
            StatusCode::kResourceExhausted);
}

TEST_F(CorpusRebuildTest, RefusesReportsOnOtherHolders) {
  const Corpus corpus = Spread("c", 7, 6);
  EXPECT_EQ(rebuild.Add({"h1"}, PartOn(corpus, "h0")).code(), StatusCode::kInvalidArgument);
  CorpusPart part = PartOn(corpus, "h0");
  part.ordinals[0] = 99;
  EXPECT_EQ(rebuild.Add({"h0"}, part).code(), StatusCode::kInvalidArgument);
  part = PartOn(corpus, "h0");
  part.corpus.version = 0;
  EXPECT_EQ(rebuild.Add({"h0"}, part).code(), StatusCode::kInvalidArgument);
  part = PartOn(corpus, "h0");
  part.ordinals.pop_back();
  EXPECT_EQ(rebuild.Add({"h0"}, part).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rebuild.count(), 0u);
}

TEST_F(CorpusRebuildTest, HasALimit) {
  ASSERT_TRUE(Report(Spread("c", 7, 90), "h0").ok());  // 60 of them
  EXPECT_EQ(Report(Spread("d", 7, 90, 2), "h0").code(), StatusCode::kResourceExhausted);
  rebuild.Remove({"", "c"}, 7, 0);
  EXPECT_TRUE(Report(Spread("d", 7, 90, 2), "h0").ok());
}

TEST_F(CorpusRebuildTest, IsListedInOrder) {
  for (const char* name : {"b", "a", "c"}) ASSERT_TRUE(Report(Spread(name, 7, 6), "h0").ok());
  const std::vector<UnprovenCorpus> listed = rebuild.List(2);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].name + listed[1].name, "ab");
  EXPECT_EQ(rebuild.count(), 3u);
}

}  // namespace
}  // namespace ckv
