// Goal: a directory whose disk is lost rebuilds its corpora from what holders report, as they were
// acknowledged. What cannot be proven is reported and not served. No dropped corpus returns while
// the directory can detect it. Method: real folders. An incarnation is a new object over a folder,
// and a lost disk is another folder. Parts are what the previous incarnation gave its holders.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/directory/rebuild_fixture.h"

namespace ckv {
namespace {

using absl::StatusCode;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using RebuildDirectoryTest = test::RebuildFixture;
using test::SpreadOver;

TEST_F(RebuildDirectoryTest, RestoresTheAcknowledgedState) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 20, 1), false, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("mine", 7, 2, "acme"), false, 0).ok());
  const Corpus gpl = **state->Get("gpl", ""), mine = **state->Get("mine", "acme");
  for (const char* holder : {"h0", "h1", "h2"}) {
    Join(holder);
    Keep(holder);
  }
  LoseDisk();
  state = &Start();
  EXPECT_EQ(Report("h0"), 0);
  EXPECT_EQ(Report("h1"), 0);
  state->reports().PublishRebuilt();
  EXPECT_THAT(state->List(""), IsEmpty()) << "others may be on their way";
  EXPECT_EQ(state->Get("gpl", "").status().code(), StatusCode::kUnavailable);
  PassGrace();
  ASSERT_NE(AwaitCorpus("gpl", gpl.version), nullptr);
  EXPECT_EQ(**state->Get("gpl", ""), gpl);
  while (!state->Get("mine", "acme").ok()) continue;
  EXPECT_EQ(**state->Get("mine", "acme"), mine);
  EXPECT_EQ(state->reports().rebuilt(10).unproven_count, 0u);
  EXPECT_EQ(Report("h2"), 2) << "it is known by now";
  // It is durable, and what is published now is later.
  state = &Start();
  EXPECT_EQ(**state->Get("gpl", ""), gpl);
  EXPECT_GT(*state->Publish(SpreadOver("gpl", 3, 3), true, gpl.version), gpl.version);
}

TEST_F(RebuildDirectoryTest, ReportsIncompleteCorporaAndDoesNotServeThem) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 20, 1), false, 0).ok());
  const Corpus gpl = **state->Get("gpl", "");
  Join("h0");
  Keep("h0");
  Keep("h1");
  LoseDisk();
  state = &Start();
  Report("h0");
  PassGrace();
  EXPECT_THAT(state->List(""), IsEmpty());
  const absl::Status refused = state->Get("gpl", "").status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.ToString(), HasSubstr("holders report 13 of its 20 chunks"));
  HolderReports::Rebuilt rebuilt = state->reports().rebuilt(10);
  EXPECT_EQ(rebuilt.unproven_count, 1u);
  ASSERT_EQ(rebuilt.unproven.size(), 1u);
  EXPECT_EQ(rebuilt.unproven[0].missing_count, 7u);
  // Nothing of it is garbage.
  const std::vector<ChunkId> ids = {gpl.chunks[0].id};
  EXPECT_THAT(state->CountReferences(ids, "h0"), ElementsAre(1u));
  // A holder that reports late makes it whole.
  Report("h1");
  state->reports().PublishRebuilt();
  const auto whole = AwaitCorpus("gpl", gpl.version);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(*whole, gpl);
  rebuilt = state->reports().rebuilt(10);
  EXPECT_EQ(rebuilt.unproven_count, 0u);
  EXPECT_EQ(rebuilt.rebuilt_count, 1u);
  EXPECT_THAT(state->CountReferences(ids, "h0"), ElementsAre(1u)) << "once";
}

TEST_F(RebuildDirectoryTest, AnUnprovenCorpusCanBeDroppedOrLoadedAgain) {
  DirectoryState* state = &Start();
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(state->Publish(SpreadOver(name, 6, name[0]), false, 0).ok());
  }
  Keep("h0");
  Keep("h1");
  LoseDisk();
  state = &Start();
  Report("h0");
  PassGrace();
  const auto dropped = state->Drop("a", "");
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT((*dropped)->chunks, IsEmpty());
  EXPECT_EQ(state->Get("a", "").status().code(), StatusCode::kNotFound);
  const auto anew = state->Publish(SpreadOver("b", 2, 9), false, 0);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_EQ(state->reports().rebuilt(10).unproven_count, 0u);
  EXPECT_EQ(Report("h1"), 2) << "both are settled";
  PassGrace();
  EXPECT_THAT(state->List(""), testing::SizeIs(1));
  EXPECT_EQ((*state->Get("b", ""))->version, *anew);
}

// A holder that was offline when the corpus changed reports an earlier version.
TEST_F(RebuildDirectoryTest, AnEarlierVersionIsNotTakenForTheCorpus) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 6, 1), false, 0).ok());
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 9, 2), true, 0).ok());
  const Corpus gpl = **state->Get("gpl", "");
  Keep("h2");
  LoseDisk();
  state = &Start();
  for (const char* holder : {"h0", "h1", "h2"}) Report(holder);
  PassGrace();
  EXPECT_THAT(state->List(""), IsEmpty());
  const auto unproven = state->reports().rebuilt(10).unproven;
  ASSERT_EQ(unproven.size(), 1u);
  EXPECT_EQ(unproven[0].version, gpl.version);
  EXPECT_EQ(unproven[0].version_count, 2u);
}

// The log is right, and holders that were offline are not.
TEST_F(RebuildDirectoryTest, ADirectoryWithItsDiskIgnoresReports) {
  DirectoryState* state = &Start();
  for (const char* name : {"dropped", "moved", "replaced"})
    ASSERT_TRUE(state->Publish(SpreadOver(name, 6, name[0]), false, 0).ok());
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);
  ASSERT_TRUE(state->Drop("dropped", "").ok());
  Corpus moved = SpreadOver("moved", 6, 'm');
  for (ChunkPlacement& chunk : moved.chunks) chunk.set_holders({{"h0"}});
  ASSERT_TRUE(state->Publish(moved, true, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("replaced", 3, 7), true, 0).ok());
  for (int incarnation = 0; incarnation < 2; ++incarnation) {
    if (incarnation == 1) state = &Start();
    for (const char* holder : {"h0", "h1", "h2"}) EXPECT_EQ(Report(holder), 3) << holder;
    PassGrace();
    EXPECT_EQ(state->reports().rebuilt(10).unproven_count, 0u);
    EXPECT_THAT(state->List(""), testing::SizeIs(2));
    // Also in the second incarnation.
    if (incarnation == 1) {
      Keep("h0");
      ASSERT_TRUE(state->Drop("moved", "").ok());
      EXPECT_EQ(Report("h0"), 2);
    }
  }
}

// A folder that was restored from a copy: what was acknowledged since is not in it.
TEST_F(RebuildDirectoryTest, AnOldCopyLearnsWhatItMissed) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 6, 1), false, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("gone", 6, 2), false, 0).ok());
  const std::string copy = Copy();
  state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 9, 3), true, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("new", 4, 4), false, 0).ok());
  ASSERT_TRUE(state->Drop("gone", "").ok());
  const Corpus later = **state->Get("old", ""), fresh = **state->Get("new", "");
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);

  log.path = copy;
  state = &Start();
  for (const char* holder : {"h0", "h1", "h2"}) EXPECT_EQ(Report(holder), 0);
  PassGrace();
  ASSERT_NE(AwaitCorpus("old", later.version), nullptr);
  EXPECT_EQ(**state->Get("old", ""), later);
  ASSERT_NE(AwaitCorpus("new", fresh.version), nullptr);
  EXPECT_EQ(state->Get("gone", "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(state->reports().rebuilt(10).redropped_count, 1u);
  EXPECT_THAT(state->reports().rebuilt(10).old_copy, HasSubstr("holder h0 has seen change"));
}

TEST_F(RebuildDirectoryTest, AHolderIsMissingUntilItHasReported) {
  DirectoryState& state = Start();
  const uint64_t lease = Join("h0");
  EXPECT_THAT(state.MissingHolders(), ElementsAre(HolderId{"h0"}));
  EXPECT_TRUE(state.CheckReturned().ok()) << "it is there, though";
  ASSERT_TRUE(state.reports().FinishReport(lease).ok());
  EXPECT_THAT(state.MissingHolders(), IsEmpty());
  Join("h1");
  clock.Advance(seconds(61));
  state.Expire();
  EXPECT_THAT(state.MissingHolders(), IsEmpty()) << "it has gone, and nothing waits for it";
  EXPECT_EQ(state.reports().ReportPart(lease, {}).status().code(), StatusCode::kNotFound);
}

// Every restart of a directory without a folder is a lost disk.
TEST_F(RebuildDirectoryTest, InMemoryItLearnsFromItsHolders) {
  log.path.clear();
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 6, 1), false, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("gone", 6, 2), false, 0).ok());
  const Corpus corpus = **state->Get("gpl", "");
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);
  ASSERT_TRUE(state->Drop("gone", "").ok());
  for (const char* holder : {"h0", "h1", "h2"})
    EXPECT_EQ(Report(holder), 2) << "this life knows better";
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);

  state = &Start();
  for (const char* holder : {"h0", "h1", "h2"}) EXPECT_EQ(Report(holder), 0);
  EXPECT_EQ(state->CountReferences(std::vector{corpus.chunks[0].id}, "h0")[0], 1u)
      << "no garbage, though it is not served yet";
  state->reports().PublishRebuilt();
  EXPECT_EQ(state->Get("gpl", "").status().code(), StatusCode::kUnavailable);
  PassGrace();
  ASSERT_TRUE(state->Get("gpl", "").ok());
  EXPECT_EQ(**state->Get("gpl", ""), corpus);
  EXPECT_THAT(state->List(""), testing::SizeIs(1));
  EXPECT_EQ(state->reports().rebuilt(10).rebuilt_count, 1u);
}

TEST_F(RebuildDirectoryTest, HoldersAreNotifiedOfChangesOfTheirCorpora) {
  DirectoryState& state = Start();
  Join("h0");
  Join("h2");
  const auto count = [&](const char* holder) {
    return state.KeepAlive(leases[holder])->placed_change_count;
  };
  EXPECT_EQ(count("h0"), 0u);
  Corpus corpus = SpreadOver("gpl", 3, 1);
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_holders({{"h0"}});
  ASSERT_TRUE(state.Publish(corpus, false, 0).ok());
  EXPECT_EQ(count("h0"), 1u);
  EXPECT_EQ(count("h2"), 0u);
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_holders({{"h2"}});
  ASSERT_TRUE(state.Publish(corpus, true, 0).ok());
  EXPECT_GT(count("h0"), 1u) << "it left";
  EXPECT_GT(count("h2"), 0u);
  EXPECT_THAT(state.reports().ListPlacedCorpora({"h0"}, std::nullopt, 10), IsEmpty());
  EXPECT_THAT(state.reports().ListPlacedCorpora({"h2"}, std::nullopt, 10), testing::SizeIs(1));
  const auto none = state.reports().PartOf({"h0"}, "", "gpl", 0, 10);
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->ordinals, IsEmpty());
  const uint64_t before = count("h2");
  ASSERT_TRUE(state.Drop("gpl", "").ok());
  EXPECT_GT(count("h2"), before);
  EXPECT_EQ(state.reports().PartOf({"h2"}, "", "gpl", 0, 10).status().code(),
            StatusCode::kNotFound);
}

TEST_F(RebuildDirectoryTest, PagesHaveTheRequestedSize) {
  DirectoryState& state = Start();
  for (const char* name : {"a", "b", "c"})
    ASSERT_TRUE(state.Publish(SpreadOver(name, 10, name[0]), false, 0).ok());
  const auto first = state.reports().ListPlacedCorpora({"h1"}, std::nullopt, 2);
  ASSERT_EQ(first.size(), 2u);
  const auto second = state.reports().ListPlacedCorpora({"h1"}, {{"", first[1]->name}}, 2);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0]->name, "c");
  std::vector<uint32_t> ordinals;
  uint32_t next = 0;
  do {
    const auto page = state.reports().PartOf({"h1"}, "", "a", next, 3, &next);
    ASSERT_TRUE(page.ok());
    EXPECT_LE(page->ordinals.size(), 3u);
    ordinals.insert(ordinals.end(), page->ordinals.begin(), page->ordinals.end());
  } while (next != 0);
  EXPECT_THAT(ordinals, ElementsAre(0, 1, 3, 4, 6, 7, 9));
}

}  // namespace
}  // namespace ckv
