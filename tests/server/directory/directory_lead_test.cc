// Goal: of several directories, a follower's tables become what the leader made durable. A change
// is made by the one that leads or not at all, and that of a member is submitted until it is
// durable.
// Method: two states without etcd. A journal in memory plays the leader's, and what it settles is
// mirrored by hand.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/directory/directory_changes.h"
#include "server/directory/directory_state.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr uint64_t kFolder = 77;

// Keeps what is submitted until Settle, which makes it durable: applied here, and mirrored.
class ShownJournal final : public ChangeJournal {
 public:
  explicit ShownJournal(ChangeSink* sink) : sink_(*sink) {}

  absl::Status Submit(std::shared_ptr<const DirectoryChange> change) override {
    held_.push_back(std::move(change));
    if (is_held) return absl::OkStatus();
    Settle(absl::OkStatus());
    return absl::OkStatus();
  }
  void Settle(const absl::Status& status) {
    for (const auto& change : std::exchange(held_, {})) {
      if (status.ok()) durable.push_back(change);
      sink_.Settle(*change, status);
    }
  }

  bool is_held = false;
  std::vector<std::shared_ptr<const DirectoryChange>> durable;

 private:
  ChangeSink& sink_;
  std::vector<std::shared_ptr<const DirectoryChange>> held_;
};

struct LeadNode {
  explicit LeadNode(ManualClock* clock)
      : state({.clock = clock, .lease_ttl = std::chrono::seconds(9), .first_epoch = 1000}) {
    state.changes().StartFollowing();
  }
  void Lead() {
    journal = std::make_shared<ShownJournal>(&state.changes());
    is_sure = true;
    state.changes().Lead(journal, kFolder, [this] { return is_sure; });
    state.changes().SetLeader("here:1");
  }
  DirectoryState state;
  std::shared_ptr<ShownJournal> journal;
  bool is_sure = false;
};

struct DirectoryLeadTest : testing::Test {
  // Brings the follower to what the leader has made durable.
  void Follow() {
    a.state.changes().SubmitMembers();
    for (; mirrored < a.journal->durable.size(); ++mirrored)
      b.state.changes().Mirror(*a.journal->durable[mirrored]);
  }
  // The first registration also reserves epochs, so it comes before.
  void LeadAndHold() {
    a.Lead();
    ASSERT_TRUE(a.state.Register(Named("first"), Duration(0)).ok());
    Follow();
    a.journal->is_held = true;
  }
  static Member Named(const std::string& name) {
    return {
        .id = {name}, .role = MemberRole::kHolder, .control_address = "127.0.0.1:1", .epoch = {}};
  }
  static Corpus Made(const std::string& name, uint32_t seed) {
    return test::MakeTestCorpus(test::TestGeometry(), {2, 2}, seed).Publish(name, "", {{{"h0"}}});
  }

  ManualClock clock;
  LeadNode a{&clock}, b{&clock};
  size_t mirrored = 0;
};

TEST_F(DirectoryLeadTest, AFollowerHasTheLeadersCorporaKeysAndMembers) {
  a.Lead();
  ASSERT_TRUE(a.state.Register(Named("h0"), Duration(0)).ok());
  const auto first = a.state.Publish(Made("kept", 1), false, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(a.state.Publish(Made("gone", 2), false, 0).ok());
  ASSERT_TRUE(a.state.Drop("gone", "").ok());
  const auto key = a.state.TenantKeyOf("t", /*make=*/true);
  ASSERT_TRUE(key.ok());
  Follow();
  EXPECT_EQ((*b.state.Get("kept", ""))->version, *first);
  EXPECT_TRUE(absl::IsNotFound(b.state.Get("gone", "").status()));
  EXPECT_EQ(*b.state.TenantKeyOf("t", /*make=*/false), *key);
  EXPECT_EQ(b.state.Members(), a.state.Members());
  // Twice is once.
  mirrored = 0;
  Follow();
  EXPECT_EQ(b.state.counts().corpus_count, 1u);
}

TEST_F(DirectoryLeadTest, AMemberThatWasRefusedIsSubmittedAgain) {
  LeadAndHold();
  ASSERT_TRUE(a.state.Register(Named("h0"), Duration(0)).ok());
  const size_t before = a.journal->durable.size();
  a.state.changes().SubmitMembers();
  a.state.changes().SubmitMembers();
  a.journal->Settle(absl::ResourceExhaustedError("no space"));
  clock.Advance(UnsavedMembers::kPauseMin);
  a.state.changes().SubmitMembers();
  a.journal->Settle(absl::OkStatus());
  EXPECT_EQ(a.journal->durable.size(), before + 1) << "once";
  Follow();
  EXPECT_EQ(b.state.Members(), a.state.Members());
  a.state.changes().SubmitMembers();
  a.journal->Settle(absl::OkStatus());
  EXPECT_EQ(a.journal->durable.size(), before + 1);
  EXPECT_FALSE(a.state.changes().ForgetUnsavedMembers());
}

TEST_F(DirectoryLeadTest, AMemberThatWasNotSavedBeforeTheLeadEndsIsReported) {
  LeadAndHold();
  ASSERT_TRUE(a.state.Register(Named("h0"), Duration(0)).ok());
  a.state.changes().SubmitMembers();
  a.state.changes().Follow();
  a.journal->Settle(absl::UnavailableError("leads no more"));
  EXPECT_TRUE(a.state.changes().ForgetUnsavedMembers());
  a.state.changes().MirrorOnly({}, {HolderId{"first"}}, {});
  ASSERT_EQ(a.state.Members().size(), 1u);
  EXPECT_EQ(a.state.Members()[0].id.name, "first");
  // It leads again, and the member registers: the followers hear of it.
  a.Lead();
  mirrored = 0;
  ASSERT_TRUE(a.state.Register(Named("h0"), Duration(0)).ok());
  Follow();
  EXPECT_EQ(b.state.Members(), a.state.Members());
}

TEST_F(DirectoryLeadTest, AFollowerTakesNoChange) {
  a.Lead();
  b.state.changes().SetLeader("10.0.0.1:7400");
  for (const absl::Status& status :
       {b.state.Publish(Made("x", 1), false, 0).status(), b.state.Drop("x", "").status(),
        b.state.Register(Named("h0"), Duration(0)).status(), b.state.KeepAlive(1).status(),
        b.state.Deregister(1), b.state.TenantKeyOf("t", true).status(),
        b.state.AnnounceReplicas(1, "", {}).status(), b.state.Watch("").status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("10.0.0.1:7400"), std::string::npos) << status;
  }
  b.state.changes().SetLeader("");
  EXPECT_TRUE(b.state.Watch("").ok()) << "while none leads, followers serve watches";
}

TEST_F(DirectoryLeadTest, ANewLeaderContinuesLeasesEpochsAndNumbers) {
  a.Lead();
  const auto grant = a.state.Register(Named("h0"), Duration(0));
  ASSERT_TRUE(grant.ok());
  const auto version = a.state.Publish(Made("c", 1), false, 0);
  Follow();
  a.is_sure = false;
  b.Lead();
  EXPECT_TRUE(b.state.CheckReturned().ok()) << "its holders are members";
  clock.Advance(std::chrono::seconds(8));
  EXPECT_EQ(b.state.Members().size(), 1u) << "a whole lease from the new leader on";
  // Another address does not get the name meanwhile.
  Member other = Named("h0");
  other.control_address = "127.0.0.2:1";
  EXPECT_TRUE(absl::IsAlreadyExists(b.state.Register(other, Duration(0)).status()));
  // The earlier lease is unknown, and the error says that another leads.
  const auto renewed = b.state.KeepAlive(grant->lease_id);
  EXPECT_TRUE(absl::IsNotFound(renewed.status()));
  ASSERT_TRUE(DirectoryIncarnationOf(renewed.status()).has_value());
  EXPECT_NE(*DirectoryIncarnationOf(renewed.status()), grant->directory_incarnation);
  Member same = Named("h0");
  same.epoch = grant->epoch;
  const auto again = b.state.Register(same, Duration(0), kInstantMax, true, /*continues=*/true);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->epoch, grant->epoch) << "its sessions go on";
  // Another process at this address gets another epoch.
  const auto restarted = b.state.Register(same, Duration(0), kInstantMax, true, false);
  EXPECT_GT(restarted->epoch, grant->epoch);
  EXPECT_GT(*b.state.Publish(Made("c", 2), true, *version), *version);
}

TEST_F(DirectoryLeadTest, AMemberWithoutANewRegistrationExpires) {
  a.Lead();
  ASSERT_TRUE(a.state.Register(Named("h0"), Duration(0)).ok());
  Follow();
  clock.Advance(std::chrono::minutes(5));
  EXPECT_EQ(b.state.Members().size(), 1u) << "a mirror ends no lease";
  b.Lead();
  clock.Advance(std::chrono::seconds(10));
  EXPECT_TRUE(b.state.Members().empty());
}

TEST_F(DirectoryLeadTest, ALeaderWhoseLeadMayBeOverChangesNothing) {
  a.Lead();
  const auto grant = a.state.Register(Named("h0"), Duration(0));
  ASSERT_TRUE(grant.ok());
  a.is_sure = false;
  EXPECT_TRUE(absl::IsUnavailable(a.state.KeepAlive(grant->lease_id).status()));
  EXPECT_TRUE(absl::IsUnavailable(a.state.Publish(Made("x", 1), false, 0).status()));
  clock.Advance(std::chrono::minutes(5));
  EXPECT_EQ(a.state.Members().size(), 1u) << "it ends no lease either";
}

TEST_F(DirectoryLeadTest, AChangeOfAnEarlierTermIsRefused) {
  a.Lead();
  a.journal->is_held = true;
  const std::shared_ptr<ShownJournal> first = a.journal;
  // Its time limit ends at once, so that it is pending.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      a.state.Publish(Made("x", 1), false, 0, nullptr, clock.Now()).status()));
  a.state.changes().Follow();
  a.Lead();
  // The next change of the corpus waits for the journal's answer about the earlier one.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      a.state.Publish(Made("x", 2), false, 0, nullptr, clock.Now()).status()));
  first->Settle(absl::UnavailableError("leads no more"));
  const auto version = a.state.Publish(Made("x", 2), false, 0);
  EXPECT_TRUE(version.ok()) << version.status();
  EXPECT_TRUE(first->durable.empty());
}

TEST_F(DirectoryLeadTest, MirrorOnlyRemovesOtherCorporaAndMembers) {
  a.Lead();
  ASSERT_TRUE(a.state.Register(Named("h0"), Duration(0)).ok());
  ASSERT_TRUE(a.state.Publish(Made("kept", 1), false, 0).ok());
  ASSERT_TRUE(a.state.Publish(Made("gone", 2), false, 0).ok());
  Follow();
  b.state.changes().MirrorOnly({CorpusKey("", "kept")}, {}, {});
  EXPECT_TRUE(b.state.Get("kept", "").ok());
  EXPECT_TRUE(absl::IsNotFound(b.state.Get("gone", "").status()));
  EXPECT_TRUE(b.state.Members().empty());
}

}  // namespace
}  // namespace ckv
