// Goal: no lost disk, old copy of the folder, or holder that was offline restores a corpus that was
// dropped or changed. What the folder lost is reported. No intended change is undone. Method: as
// rebuild_directory_test.cc; some holders are offline when it matters.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/directory/rebuild_fixture.h"

namespace ckv {
namespace {

using absl::StatusCode;
using std::chrono::seconds;
using test::SpreadOver;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct DirectoryDropsTest : test::RebuildFixture {
  StatusCode Code(const std::string& name) {
    return directory->state().Get(name, "").status().code();
  }
};

// h0 and h1 have all chunks between them, and were offline when the corpus was dropped.
TEST_F(DirectoryDropsTest, ADropOutlivesTheDiskInItsHolders) {
  for (const bool in_memory : {false, true}) {
    parts.clear(), seen.clear(), drops.clear();
    if (in_memory) log.path.clear();
    DirectoryState* state = &Start();
    ASSERT_TRUE(state->Publish(SpreadOver("gone", 6, 1), false, 0).ok());
    ASSERT_TRUE(state->Publish(SpreadOver("stays", 6, 2), false, 0).ok());
    for (const char* holder : {"h0", "h1"}) Keep(holder);
    Join("h2");
    const auto before = state->KeepAlive(leases["h2"])->placed_change_count;
    ASSERT_TRUE(state->Drop("gone", "").ok());
    EXPECT_GT(state->KeepAlive(leases["h2"])->placed_change_count, before);
    Keep("h2");
    EXPECT_THAT(drops["h2"], SizeIs(1));
    // Those that were offline report first, or last.
    for (const bool first : {true, false}) {
      if (!in_memory) LoseDisk();
      state = &Start();
      if (first) Report("h2");
      Report("h0");
      Report("h1");
      PassGrace();
      EXPECT_EQ(Code("gone") == StatusCode::kNotFound, first) << "nobody has told of it";
      if (!first) {
        ASSERT_TRUE(AwaitCorpus("gone", parts["h0"][0].corpus.version));
        Report("h2");
      }
      EXPECT_EQ(Code("gone"), StatusCode::kNotFound) << first;
      EXPECT_EQ(state->reports().rebuilt(10).redropped_count, first ? 0u : 1u);
      ASSERT_NE(AwaitCorpus("stays", parts["h0"][1].corpus.version), nullptr);
      if (in_memory) break;
      // The drop holds after a restart, when the others report without the one that recorded it.
      state = &Start();
      Report("h0");
      Report("h1");
      PassGrace();
      EXPECT_EQ(Code("gone"), StatusCode::kNotFound);
      EXPECT_EQ(state->reports().rebuilt(10).unproven_count, 0u);
    }
  }
}

// After a lost disk the previous version is whole first; a later one is reported late.
TEST_F(DirectoryDropsTest, ALaterVersionThatIsReportedLateCounts) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 6, 1), false, 0).ok());
  const Corpus before = **state->Get("gpl", "");
  for (const char* holder : {"h0", "h1"}) Keep(holder);
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 9, 2), true, 0).ok());
  const Corpus later = **state->Get("gpl", "");
  Keep("h2");
  Keep("h3");                                                           // nothing
  parts["h3"] = {*state->reports().PartOf({"h1"}, "", "gpl", 0, 100)};  // as h1 will have it
  LoseDisk();
  state = &Start();
  for (const char* holder : {"h0", "h1"}) Report(holder);
  PassGrace();
  ASSERT_NE(AwaitCorpus("gpl", before.version), nullptr);
  Report("h2");
  EXPECT_EQ(Code("gpl"), StatusCode::kUnavailable) << "it is known that this is not the latest";
  parts["h1"] = parts["h3"];
  Report("h1");
  state->reports().PublishRebuilt();
  const auto whole = AwaitCorpus("gpl", later.version);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(*whole, later);
}

// A drop by an operator also counts for holders that are offline at that time.
TEST_F(DirectoryDropsTest, AnUnprovenCorpusThatIsDroppedStaysSo) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 6, 1), false, 0).ok());
  for (const char* holder : {"h0", "h1"}) Keep(holder);
  LoseDisk();
  state = &Start();
  Report("h0");
  ASSERT_TRUE(state->Drop("gpl", "").ok());
  EXPECT_EQ(state->reports().rebuilt(10).unproven_count, 0u);
  state = &Start();
  EXPECT_EQ(Report("h0"), 1);
  EXPECT_EQ(Report("h1"), 1);
  PassGrace();
  EXPECT_EQ(Code("gpl"), StatusCode::kNotFound);
  EXPECT_THAT(state->List(""), IsEmpty());
}

// Two restarts after the restore, a holder that was offline reports the changes that were lost.
TEST_F(DirectoryDropsTest, ALateHoldersReportCountsInLaterIncarnations) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 6, 1), false, 0).ok());
  const std::string copy = Copy();
  state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 9, 2), true, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("new", 6, 3), false, 0).ok());
  const Corpus later = **state->Get("old", ""), fresh = **state->Get("new", "");
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);
  log.path = copy;
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    state = &Start();
    ASSERT_TRUE(
        state->Publish(SpreadOver(absl::StrCat("after", incarnation), 3, 4), false, 0).ok());
    EXPECT_THAT(state->reports().rebuilt(10).old_copy, IsEmpty());
    EXPECT_EQ((*state->Get("old", ""))->chunks.size(), 6u) << "nobody has told yet";
  }
  EXPECT_EQ(Report("h0"), 0) << "of no use to nobody";
  EXPECT_THAT(state->reports().rebuilt(10).old_copy, HasSubstr("holder h0"));
  const absl::Status refused = state->Get("old", "").status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << "it is known that this is not the latest";
  EXPECT_THAT(refused.ToString(), HasSubstr("load it with --replace"));
  EXPECT_EQ(Report("h1"), 0);
  PassGrace();
  ASSERT_NE(AwaitCorpus("old", later.version), nullptr);
  ASSERT_NE(AwaitCorpus("new", fresh.version), nullptr);
  EXPECT_THAT(state->List(""), SizeIs(5));
  // It is no news any more.
  state = &Start();
  Keep("h0");
  EXPECT_FALSE(ReportDrops("h0", Join("h0")));
  EXPECT_EQ(Report("h0"), 5) << "all are known";
  EXPECT_THAT(state->reports().rebuilt(10).old_copy, IsEmpty());
  EXPECT_EQ(**state->Get("old", ""), later);
}

// The corpus moved to a holder that is offline; its previous holder recorded that it moved away.
TEST_F(DirectoryDropsTest, AnOldCopyDoesNotRemoveWhatLeftAHolder) {
  DirectoryState* state = &Start();
  Corpus corpus = SpreadOver("moved", 6, 1);
  ASSERT_TRUE(state->Publish(corpus, false, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("stays", 6, 2), false, 0).ok());
  Keep("h0");
  const std::string copy = Copy();
  state = &Start();
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_holders({{"h7"}});
  ASSERT_TRUE(state->Publish(corpus, true, 0).ok());
  const uint64_t version = (*state->Get("moved", ""))->version;
  for (const char* holder : {"h0", "h7"}) Keep(holder);
  log.path = copy;
  state = &Start();
  Report("h0");
  EXPECT_EQ(Code("moved"), StatusCode::kNotFound) << "its rows are not there any more";
  EXPECT_EQ(Code("stays"), StatusCode::kOk);
  EXPECT_EQ(state->reports().rebuilt(10).redropped_count, 1u);
  Report("h7");
  PassGrace();
  EXPECT_NE(AwaitCorpus("moved", version), nullptr);
}

// No restart of a whole folder looks like an old copy, and no report undoes its contents.
TEST_F(DirectoryDropsTest, TrustsAWholeFolder) {
  DirectoryState* state = &Start();
  for (int incarnation = 0; incarnation < 5; ++incarnation) {
    ASSERT_TRUE(state->Publish(SpreadOver("a", 3 + incarnation, 1 + incarnation), true, 0).ok());
    ASSERT_TRUE(state->Publish(SpreadOver("b", 3, 9), true, 0).ok());
    if (incarnation % 2 == 1) {
      ASSERT_TRUE(state->Drop("b", "").ok());
    }
    for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);
    const uint64_t version = (*state->Get("a", ""))->version;
    state = &Start();
    for (const char* holder : {"h0", "h1", "h2"}) {
      EXPECT_FALSE(ReportDrops(holder, Join(holder))) << incarnation;
      Report(holder);
    }
    PassGrace();
    EXPECT_EQ((*state->Get("a", ""))->version, version);
    EXPECT_EQ(Code("b"), incarnation % 2 == 1 ? StatusCode::kNotFound : StatusCode::kOk);
    EXPECT_THAT(state->reports().rebuilt(10).old_copy, IsEmpty());
    EXPECT_EQ(state->reports().rebuilt(10).redropped_count, 0u);
  }
}

// A holder of another fleet brings that fleet's corpora of the same names.
TEST_F(DirectoryDropsTest, AnotherFleetsHolderChangesNothing) {
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 6, 1), false, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("wiki", 6, 2), false, 0).ok());
  const Corpus gpl = **state->Get("gpl", ""), wiki = **state->Get("wiki", "");
  const std::string ours = log.path;
  for (const char* holder : {"h0", "h1"}) Keep(holder);
  LoseDisk();
  state = &Start();  // later, so its versions are higher
  ASSERT_TRUE(state->Publish(SpreadOver("gpl", 9, 3), false, 0).ok());
  ASSERT_TRUE(state->Publish(SpreadOver("wiki", 9, 4), false, 0).ok());
  ASSERT_TRUE(state->Drop("wiki", "").ok());
  for (const char* holder : {"h2"}) Keep(holder);
  parts["h2"].clear();
  Corpus foreign = **state->Get("gpl", "");
  for (ChunkPlacement& chunk : foreign.chunks) chunk.set_holders({{"h2"}});
  CorpusPart part = {foreign, {}, 9, grants["h2"].folder_id + 1};
  for (uint32_t i = 0; i < 9; ++i) part.ordinals.push_back(i);
  parts["h2"].push_back(part);
  log.path = ours;
  state = &Start();
  EXPECT_EQ(Report("h2"), 0);
  PassGrace();
  EXPECT_EQ(**state->Get("gpl", ""), gpl) << "it was published here";
  EXPECT_EQ(**state->Get("wiki", ""), wiki);
  const auto unproven = state->reports().rebuilt(10).unproven;
  ASSERT_THAT(unproven, SizeIs(1));
  EXPECT_THAT(unproven[0].why, HasSubstr("another directory gave version"));
  EXPECT_EQ(state->CountReferences(std::vector{foreign.chunks[8].id}, "h2")[0], 1u);
  // A drop in the other fleet does not touch a corpus that is made whole again.
  LoseDisk();
  state = &Start();
  for (const char* holder : {"h2", "h0", "h1"}) Report(holder);
  PassGrace();
  EXPECT_NE(AwaitCorpus("wiki", wiki.version), nullptr);
  // The operator decides: everything of that name is dropped.
  ASSERT_TRUE(state->Drop("gpl", "").ok());
  EXPECT_EQ(Code("gpl"), StatusCode::kNotFound);
  EXPECT_EQ(Report("h2"), 1);
}

// The wall clock went back as well: versions that were reported are not given again.
TEST_F(DirectoryDropsTest, AClockThatMovedBackHidesNothing) {
  clock_step = 0;
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 6, 1), false, 0).ok());
  const std::string copy = Copy();
  state = &Start();
  for (uint32_t i = 0; i < 50; ++i)
    ASSERT_TRUE(state->Publish(SpreadOver("old", 9, 2 + i), true, 0).ok());
  const Corpus later = **state->Get("old", "");
  for (const char* holder : {"h0", "h1", "h2"}) Keep(holder);
  log.path = copy;
  state = &Start();
  for (const char* holder : {"h0", "h1", "h2"}) EXPECT_EQ(Report(holder), 0);
  EXPECT_GT(*state->Publish(SpreadOver("new", 3, 90), false, 0), later.version);
  PassGrace();
  ASSERT_NE(AwaitCorpus("old", later.version), nullptr);
  state = &Start();
  EXPECT_EQ(**state->Get("old", ""), later);
  EXPECT_GT(*state->Publish(SpreadOver("new", 4, 91), true, 0), later.version + 1);
}

// A snapshot keeps what is remembered.
TEST_F(DirectoryDropsTest, SnapshotsRememberDropsAndGaps) {
  log.log_bytes_min = 2000;
  DirectoryState* state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 6, 1), false, 0).ok());
  const std::string copy = Copy();
  state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("old", 9, 2), true, 0).ok());
  const Corpus later = **state->Get("old", "");
  for (const char* holder : {"h0", "h1"}) Keep(holder);
  log.path = copy;
  state = &Start();
  ASSERT_TRUE(state->Publish(SpreadOver("dropped", 3, 3), false, 0).ok());
  ASSERT_TRUE(state->Drop("dropped", "").ok());
  const auto stats = [&] { return directory->log()->stats(); };
  for (uint32_t i = 0; stats().snapshot_count < 2; ++i)
    ASSERT_TRUE(state->Publish(SpreadOver("much", 9, 10 + i), true, 0).ok());
  state = &Start();
  EXPECT_THAT(state->reports().NewsSince({}).dropped, SizeIs(1));
  for (const char* holder : {"h0", "h1"}) EXPECT_EQ(Report(holder), 0);
  PassGrace();
  EXPECT_NE(AwaitCorpus("old", later.version), nullptr);
}

// Takes changes, which the test settles as it likes.
struct HeldJournal final : ChangeJournal {
  absl::Status Submit(std::shared_ptr<const DirectoryChange> change) override {
    changes.push_back(std::move(change));
    return absl::OkStatus();
  }
  std::vector<std::shared_ptr<const DirectoryChange>> changes;
};

// A holder has not seen a change that became durable after one with a higher number.
TEST_F(DirectoryDropsTest, HidesChangesUntilTheyAreDurable) {
  HeldJournal journal;
  DirectoryState state(options);
  DirectoryChange before;
  before.corpus = std::make_shared<const Corpus>([] {
    Corpus corpus = SpreadOver("before", 3, 1);
    corpus.version = 77;
    return corpus;
  }());
  ASSERT_TRUE(state.changes().Replay(before).ok());
  state.changes().SetJournal(&journal, 4711);
  EXPECT_EQ(state.reports().NewsSince({}).seen, (SeenDirectory{4711, 77}));
  const auto submit = [&](const char* name) {
    EXPECT_EQ(state.Publish(SpreadOver(name, 3, 2), false, 0, nullptr, clock.Now()).status().code(),
              StatusCode::kDeadlineExceeded);
  };
  for (const char* name : {"a", "b", "c"}) submit(name);
  ASSERT_THAT(journal.changes, SizeIs(4)) << "the gap of the start comes first";
  EXPECT_EQ(journal.changes[0]->kind, ChangeKind::kGap);
  EXPECT_EQ(journal.changes[0]->gap, (VersionGap{77, options.first_epoch}));
  state.changes().Settle(*journal.changes[3], absl::OkStatus());
  EXPECT_EQ(state.reports().NewsSince({}).seen.number, 77u) << "and not one that was never given";
  state.changes().Settle(*journal.changes[1], absl::OkStatus());
  EXPECT_EQ(state.reports().NewsSince({}).seen.number, options.first_epoch + 1);
  state.changes().Settle(*journal.changes[2], absl::UnavailableError("EIO"));
  EXPECT_EQ(state.reports().NewsSince({}).seen.number, options.first_epoch + 3);
  // A gap that was not written is submitted with the next change.
  state.changes().Settle(*journal.changes[0], absl::UnavailableError("EIO"));
  submit("d");
  ASSERT_THAT(journal.changes, SizeIs(6));
  EXPECT_EQ(journal.changes[4]->kind, ChangeKind::kGap);
  state.changes().Settle(*journal.changes[5], absl::OkStatus());
}

TEST_F(DirectoryDropsTest, LimitsReports) {
  DirectoryState& state = Start();
  const uint64_t lease = Join("h0");
  const SeenDirectory other = {4711, 1};
  const auto code = [&](const DroppedCorpus& dropped, size_t count = 1) {
    return state.reports()
        .ReportDropped(lease, other, std::vector<DroppedCorpus>(count, dropped), kInstantMax)
        .code();
  };
  EXPECT_EQ(code({"", "a", 1, 7, 7}), StatusCode::kOk);
  EXPECT_EQ(code({"", "a", 1, 7, 7}, kDroppedCountMax + 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"", "", 1, 7, 7}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"", "a b", 1, 7, 7}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({std::string(200, 't'), "a", 1, 7, 7}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"", "a", 1, 0, 7}), StatusCode::kInvalidArgument);
  EXPECT_EQ(state.reports().NoteSeen(lease, {grants["h0"].folder_id, ~uint64_t{0}}).status().code(),
            StatusCode::kInvalidArgument)
      << "nobody uses the numbers up";
  EXPECT_EQ(state.reports().NoteSeen(lease + 1, other).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ckv
