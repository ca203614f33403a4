// Goal: the directory's facts name who reports what, who lacks which placed chunk, who is silent.
// Method: the state alone, with members that renew, report, and end.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "proto/health/findings.h"
#include "server/directory/directory_state.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::seconds;

class DirectoryHealthTest : public testing::Test {
 protected:
  DirectoryHealthTest() {
    options_.clock = &clock_;
    options_.first_epoch = 1'000'000;
    state_ = std::make_unique<DirectoryState>(options_);
    state_->changes().StartInMemory();
  }
  LeaseGrant Join(const std::string& name, uint64_t epoch = 0) {
    return *state_->Register({.id = {name},
                              .role = MemberRole::kHolder,
                              .control_address = name + ":1",
                              .epoch = {epoch}},
                             seconds(3));
  }
  // Both chunks on h0 and h1, the third on h0 alone.
  Corpus PublishDocs() {
    const Corpus corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6, 7}, /*seed=*/3)
                              .Publish("docs", "", {{{"h0"}, {"h1"}}, {{"h1"}, {"h0"}}, {{"h0"}}});
    EXPECT_TRUE(state_->Publish(corpus, false, 0).ok());
    return **state_->Get("docs", "");
  }
  std::vector<std::string> Codes() {
    std::vector<std::string> codes;
    FleetFacts facts = state_->health().Facts();
    for (const Finding& finding : JudgeFleet(facts)) codes.emplace_back(CodeName(finding.code));
    return codes;
  }

  ManualClock clock_;
  DirectoryOptions options_;
  std::unique_ptr<DirectoryState> state_;
};

TEST_F(DirectoryHealthTest, AWholeFleetHasNoFinding) {
  Join("h0");
  Join("h1");
  PublishDocs();
  EXPECT_EQ(Codes(), std::vector<std::string>{});
  const FleetFacts facts = state_->health().Facts();
  ASSERT_EQ(facts.members.size(), 2u);
  EXPECT_EQ(facts.members[0].placed_count, 3u);
  EXPECT_EQ(facts.members[1].placed_count, 2u);
}

TEST_F(DirectoryHealthTest, CallersAreSentToHoldersThatHaveTheChunk) {
  const LeaseGrant h0 = Join("h0");
  Join("h1");
  const Corpus docs = PublishDocs();
  const std::vector<ChunkId> lost = {docs.chunks[0].id, docs.chunks[2].id};
  ASSERT_TRUE(state_->reports().ReportLacking(h0.lease_id, lost, true, true).ok());
  const Corpus reported = **state_->Get("docs", "", /*for_calls=*/true);
  EXPECT_EQ(reported.chunks[0].holders(), std::vector<HolderId>{{"h1"}});
  EXPECT_EQ(reported.chunks[1].holders().size(), 2u);
  EXPECT_EQ(reported.chunks[2].holders(), std::vector<HolderId>{{"h0"}}) << "nobody else has it";
  EXPECT_EQ(state_->Locate(lost[0], "", true)[0].chunk.holders().size(), 1u);
  EXPECT_EQ((*state_->Get("docs", ""))->chunks[0].holders().size(), 2u)
      << "its places are the same";
  EXPECT_EQ(Codes(), (std::vector<std::string>{"corpus-chunks-missing", "holder-lacks-chunks"}));
  // Put again.
  ASSERT_TRUE(state_->reports().ReportLacking(h0.lease_id, {}, true, true).ok());
  EXPECT_EQ(Codes(), std::vector<std::string>{});
  EXPECT_EQ((*state_->Get("docs", "", true))->chunks[0].holders().size(), 2u);
}

TEST_F(DirectoryHealthTest, WatchersLearnThatACorpusIsToBeReadAgain) {
  const LeaseGrant h0 = Join("h0");
  const Corpus docs = PublishDocs();
  const auto watcher = *state_->Watch("");
  while ((*watcher->Next(clock_.Now()))->kind != DirectoryEvent::Kind::kSynced) {
  }
  const std::vector<ChunkId> lost = {docs.chunks[0].id};
  ASSERT_TRUE(state_->reports().ReportLacking(h0.lease_id, lost, true, true).ok());
  const auto event = *watcher->Next(clock_.Now());
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, DirectoryEvent::Kind::kReplicasChanged);
}

TEST_F(DirectoryHealthTest, AHolderThatIsGoneIsNamedWithItsChunks) {
  Join("h0");
  const LeaseGrant h1 = Join("h1");
  PublishDocs();
  ASSERT_TRUE(state_->Deregister(h1.lease_id).ok());
  EXPECT_EQ(Codes(), (std::vector<std::string>{"corpus-copies-missing", "member-lost"}));
  clock_.Advance(seconds(4));
  EXPECT_EQ(Codes(), (std::vector<std::string>{"corpus-chunks-missing", "no-holder", "member-lost",
                                               "member-lost"}));
  EXPECT_EQ(state_->health().Covered()->missing_chunk_count, 3u);
  Join("h0");
  Join("h1");
  EXPECT_EQ(Codes(), std::vector<std::string>{});
}

TEST_F(DirectoryHealthTest, AMembersReportsEndWithItsLease) {
  const LeaseGrant h0 = Join("h0");
  MemberHealth health;
  health.fault = StoreFault::kFailing;
  health.fault_text = "Input/output error";
  health.wall_clock_ms = WallClockMilliseconds() - 3'600'000;
  ASSERT_TRUE(state_->KeepAlive(h0.lease_id, &health).ok());
  EXPECT_EQ(Codes(), (std::vector<std::string>{"holder-store-failing", "clock-off"}));
  ASSERT_TRUE(state_->KeepAlive(h0.lease_id).ok());
  EXPECT_EQ(Codes().size(), 2u) << "a renewal that tells nothing changes nothing";
  const LeaseGrant again = Join("h0");
  EXPECT_EQ(Codes(), std::vector<std::string>{});
  health = {};
  ASSERT_TRUE(state_->KeepAlive(again.lease_id, &health).ok());
  EXPECT_EQ(Codes(), std::vector<std::string>{});
}

TEST_F(DirectoryHealthTest, ListsASilentMemberUntilItAnswersOrRestarts) {
  Join("h0");
  const Member member = state_->Members()[0];
  state_->health().NoteProbe(member, absl::UnavailableError("no answer for 12 s"));
  EXPECT_EQ(Codes(), std::vector<std::string>{"member-unreachable"});
  state_->health().NoteProbe(member, absl::OkStatus());
  EXPECT_EQ(Codes(), std::vector<std::string>{});
  state_->health().NoteProbe(member, absl::UnavailableError("no answer for 12 s"));
  Join("h0");
  EXPECT_EQ(Codes(), std::vector<std::string>{});
  state_->health().NoteProbe(member, absl::UnavailableError("late"));
  EXPECT_EQ(Codes(), std::vector<std::string>{}) << "it is of the life before";
}

TEST_F(DirectoryHealthTest, ADirectoryWithoutItsCorporaReportsThatItLearns) {
  Join("new");
  EXPECT_EQ(Codes(), std::vector<std::string>{}) << "a fleet that begins has nothing to learn";
  Join("h0", /*epoch=*/999'999);  // of another incarnation of the directory
  EXPECT_EQ(Codes(), std::vector<std::string>{"directory-learning"});
  EXPECT_GT(state_->health().Facts().directory->learns_for, Duration(0));
  clock_.Advance(options_.rebuild_grace);
  Join("h0");
  EXPECT_EQ(state_->health().Facts().directory->learns_for, Duration(0));
}

TEST_F(DirectoryHealthTest, ReportsNeedAHoldersLease) {
  EXPECT_TRUE(absl::IsNotFound(state_->reports().ReportLacking(7, {}, true, true)));
  const LeaseGrant requester = *state_->Register(
      {.id = {"r"}, .role = MemberRole::kRequester, .control_address = "r:1", .epoch = {}},
      seconds(3));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      state_->reports().ReportLacking(requester.lease_id, {}, true, true)));
}

}  // namespace
}  // namespace ckv
