#include "server/directory/directory_state.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = DirectoryEvent::Kind;

Member HolderAt(const std::string& name, const std::string& address = "127.0.0.1:7400") {
  return {.id = {name}, .role = MemberRole::kHolder, .control_address = address, .epoch = {}};
}

class DirectoryStateTest : public testing::Test {
 protected:
  static DirectoryOptions Options(Clock* clock) {
    DirectoryOptions options;
    options.clock = clock;
    options.corpus_count_max = 3;
    options.placement_count_max = 12;
    options.watcher_count_max = 2;
    return options;
  }

  static Corpus MakeCorpus(const std::string& name, const std::string& tenant, size_t chunk_count,
                           uint32_t seed) {
    return test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
        .Publish(name, tenant, {{HolderId{"a"}}});
  }

  // The pending events, as "up a 1", "gone a 1", "corpus gpl 7", "dropped gpl 7", "synced".
  std::vector<std::string> Drain(DirectoryWatcher& watcher) {
    std::vector<std::string> lines;
    for (;;) {
      const auto event = watcher.Next(clock_.Now());
      if (!event.ok()) {
        lines.push_back(std::string(absl::StatusCodeToString(event.status().code())));
        return lines;
      }
      if (!event->has_value()) return lines;
      const DirectoryEvent& e = **event;
      const std::string epoch = std::to_string(e.member.epoch.value);
      switch (e.kind) {
        case Kind::kMemberUp:
          lines.push_back("up " + e.member.id.name + " " + epoch);
          break;
        case Kind::kMemberGone:
          lines.push_back("gone " + e.member.id.name + " " + epoch);
          break;
        case Kind::kCorpusPublished:
          lines.push_back("corpus " + e.corpus->name + " " + std::to_string(e.corpus->version));
          break;
        case Kind::kCorpusDropped:
          lines.push_back("dropped " + e.corpus->name + " " + std::to_string(e.corpus->version));
          break;
        case Kind::kReplicasChanged:
          lines.push_back("replicas " + e.corpus->name);
          break;
        case Kind::kSynced:
          lines.push_back("synced");
          break;
      }
    }
  }

  ManualClock clock_;
  DirectoryState state_{Options(&clock_)};
};

TEST_F(DirectoryStateTest, AnEpochIsNeverGivenTwice) {
  const auto first = state_.Register(HolderAt("a"), Duration(0));
  const auto other = state_.Register(HolderAt("b"), Duration(0));
  const auto second = state_.Register(HolderAt("a"), Duration(0));
  ASSERT_TRUE(first.ok() && other.ok() && second.ok());
  EXPECT_LT(first->epoch, other->epoch);
  EXPECT_LT(other->epoch, second->epoch);
  // Registering a name again kills the earlier lease.
  EXPECT_TRUE(absl::IsNotFound(state_.KeepAlive(first->lease_id).status()));
  EXPECT_TRUE(state_.KeepAlive(second->lease_id).ok());
  EXPECT_THAT(state_.Members(), testing::SizeIs(2));
  EXPECT_EQ(state_.Members()[0].epoch, second->epoch);
}

TEST_F(DirectoryStateTest, ANameIsItsAddressesUntilTheLeaseEnds) {
  const auto first = state_.Register(HolderAt("h1", "127.0.0.1:27411"), seconds(2));
  ASSERT_TRUE(first.ok());
  const auto second = state_.Register(HolderAt("h1", "127.0.0.1:7402"), seconds(2));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.status().message(),
            "name 'h1' is held by 127.0.0.1:27411; choose another with --name");
  EXPECT_EQ(LeaseEndOf(second.status()), seconds(2));
  EXPECT_TRUE(state_.KeepAlive(first->lease_id).ok()) << "the one who has it keeps it";

  // The same address again is the same process in a later incarnation.
  const auto again = state_.Register(HolderAt("h1", "127.0.0.1:27411"), seconds(2));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(absl::IsNotFound(state_.KeepAlive(first->lease_id).status()));

  clock_.Advance(milliseconds(1999));
  EXPECT_TRUE(absl::IsAlreadyExists(
      state_.Register(HolderAt("h1", "127.0.0.1:7402"), seconds(2)).status()));
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(state_.Register(HolderAt("h1", "127.0.0.1:7402"), seconds(2)).ok());
  EXPECT_TRUE(absl::IsNotFound(state_.KeepAlive(again->lease_id).status()));
}

TEST_F(DirectoryStateTest, EpochsOfALaterLifeStartAbove) {
  DirectoryOptions options = Options(&clock_);
  options.first_epoch = 1'700'000'000'000;
  DirectoryState later(options);
  const auto grant = later.Register(HolderAt("a"), Duration(0));
  ASSERT_TRUE(grant.ok());
  EXPECT_GT(grant->epoch.value, options.first_epoch);
  const auto version = later.Publish(MakeCorpus("gpl", "", 1, 1), false, 0);
  ASSERT_TRUE(version.ok());
  EXPECT_GT(*version, options.first_epoch);
}

TEST_F(DirectoryStateTest, ALeaseLastsAsLongAsItIsRenewed) {
  const auto grant = state_.Register(HolderAt("a"), seconds(2));
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->ttl, seconds(2));
  clock_.Advance(milliseconds(1999));
  ASSERT_TRUE(state_.KeepAlive(grant->lease_id).ok());
  clock_.Advance(milliseconds(1999));
  EXPECT_THAT(state_.Members(), testing::SizeIs(1));
  clock_.Advance(milliseconds(1));
  EXPECT_THAT(state_.Members(), testing::IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(state_.KeepAlive(grant->lease_id).status()));
  EXPECT_TRUE(absl::IsNotFound(state_.Deregister(grant->lease_id)));
}

// Goal: an ended member is listed, with when and how, until its name returns or a day has passed.
TEST_F(DirectoryStateTest, ReportsEndedLeases) {
  const auto a = state_.Register(HolderAt("a", "10.0.0.1:7401"), seconds(2));
  const auto b = state_.Register(HolderAt("b"), seconds(60));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_THAT(state_.Ended(), testing::IsEmpty());
  clock_.Advance(seconds(2));
  ASSERT_TRUE(state_.Deregister(b->lease_id).ok());
  clock_.Advance(seconds(1));
  const std::vector<EndedLease> ended = state_.Ended();
  ASSERT_THAT(ended, testing::SizeIs(2));
  EXPECT_EQ(ended[0].member.id.name, "b");
  EXPECT_FALSE(ended[0].ran_out);
  EXPECT_EQ(ended[1].member.control_address, "10.0.0.1:7401");
  EXPECT_TRUE(ended[1].ran_out);
  EXPECT_EQ(clock_.Now() - ended[1].ended, seconds(1));
  ASSERT_TRUE(state_.Register(HolderAt("a"), seconds(60)).ok());
  EXPECT_THAT(state_.Ended(), testing::SizeIs(1));
  clock_.Advance(LeaseTable::kEndedAgeMax);
  EXPECT_THAT(state_.Ended(), testing::SizeIs(1));  // of a, which has run out meanwhile
  EXPECT_EQ(state_.Ended()[0].member.id.name, "a");
}

TEST_F(DirectoryStateTest, EndedLeasesAreBounded) {
  for (int i = 0; i < 100; ++i) {
    const auto grant = state_.Register(HolderAt("h" + std::to_string(i)), Duration(0));
    ASSERT_TRUE(grant.ok() && state_.Deregister(grant->lease_id).ok());
  }
  const std::vector<EndedLease> ended = state_.Ended();
  ASSERT_THAT(ended, testing::SizeIs(EndedLeases::kCountMax));
  EXPECT_EQ(ended[0].member.id.name, "h99");
}

TEST_F(DirectoryStateTest, TheTtlStaysWithinItsLimits) {
  EXPECT_EQ(state_.Register(HolderAt("a"), Duration(0))->ttl, seconds(3));
  EXPECT_EQ(state_.Register(HolderAt("a"), milliseconds(1))->ttl, milliseconds(500));
  EXPECT_EQ(state_.Register(HolderAt("a"), seconds(3600))->ttl, seconds(60));
}

TEST_F(DirectoryStateTest, AMemberNeedsANameARoleAndAnAddress) {
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Register(HolderAt(""), Duration(0)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      state_.Register(HolderAt(std::string(kCorpusNameBytesMax + 1, 'x')), Duration(0)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Register(HolderAt("a", ""), Duration(0)).status()));
  Member nobody = HolderAt("a");
  nobody.role = static_cast<MemberRole>(9);
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Register(nobody, Duration(0)).status()));
}

TEST_F(DirectoryStateTest, MembersAreBoundedAndANameAgainFits) {
  for (uint32_t i = 0; i < kMemberCountMax; ++i) {
    ASSERT_TRUE(state_.Register(HolderAt("m" + std::to_string(i)), Duration(0)).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(state_.Register(HolderAt("x"), Duration(0)).status()));
  EXPECT_TRUE(state_.Register(HolderAt("m7"), Duration(0)).ok());
}

TEST_F(DirectoryStateTest, VersionsRiseAndReplacingMustBeRequested) {
  const auto first = state_.Publish(MakeCorpus("gpl", "", 2, 1), false, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(
      absl::IsAlreadyExists(state_.Publish(MakeCorpus("gpl", "", 3, 2), false, 0).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      state_.Publish(MakeCorpus("gpl", "", 3, 2), true, *first + 1).status()));
  EXPECT_EQ((*state_.Get("gpl", ""))->chunks.size(), 2u);
  const auto second = state_.Publish(MakeCorpus("gpl", "", 3, 2), true, *first);
  ASSERT_TRUE(second.ok());
  EXPECT_GT(*second, *first);
  EXPECT_EQ((*state_.Get("gpl", ""))->version, *second);
  // A version of a dropped corpus is not current either, and is not given again.
  ASSERT_TRUE(state_.Drop("gpl", "").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      state_.Publish(MakeCorpus("gpl", "", 3, 2), false, *second).status()));
  const auto third = state_.Publish(MakeCorpus("gpl", "", 3, 2), false, 0);
  ASSERT_TRUE(third.ok());
  EXPECT_GT(*third, *second);
}

TEST_F(DirectoryStateTest, AMalformedCorpusIsRefused) {
  Corpus corpus = MakeCorpus("gpl", "", 2, 1);
  corpus.chunks[1].set_holders({});
  EXPECT_TRUE(absl::IsInvalidArgument(state_.Publish(corpus, false, 0).status()));
  EXPECT_TRUE(absl::IsNotFound(state_.Get("gpl", "").status()));
}

TEST_F(DirectoryStateTest, CorporaAndTheirChunksAreBounded) {
  ASSERT_TRUE(state_.Publish(MakeCorpus("a", "", 4, 1), false, 0).ok());
  ASSERT_TRUE(state_.Publish(MakeCorpus("b", "", 4, 2), false, 0).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(state_.Publish(MakeCorpus("c", "", 5, 3), false, 0).status()));
  // What a replacement frees counts.
  EXPECT_TRUE(state_.Publish(MakeCorpus("b", "", 8, 4), true, 0).ok());
  ASSERT_TRUE(state_.Drop("b", "").ok());
  ASSERT_TRUE(state_.Publish(MakeCorpus("b", "", 1, 5), false, 0).ok());
  ASSERT_TRUE(state_.Publish(MakeCorpus("c", "", 1, 6), false, 0).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(state_.Publish(MakeCorpus("d", "", 1, 7), false, 0).status()));
}

// Goal: denied and not-found look the same (I6), in code and in text.
TEST_F(DirectoryStateTest, AnotherTenantsCorpusLooksLikeNone) {
  const Corpus secret = MakeCorpus("notes", "red", 2, 1);
  const Corpus shared = MakeCorpus("gpl", "", 2, 2);
  ASSERT_TRUE(state_.Publish(secret, false, 0).ok());
  ASSERT_TRUE(state_.Publish(shared, false, 0).ok());

  const absl::Status denied = state_.Get("notes", "blue").status();
  ASSERT_TRUE(state_.Drop("notes", "red").ok());
  EXPECT_EQ(denied, state_.Get("notes", "blue").status());
  ASSERT_TRUE(state_.Publish(secret, false, 0).ok());

  EXPECT_TRUE(absl::IsNotFound(state_.Drop("notes", "blue").status()));
  EXPECT_TRUE(absl::IsNotFound(state_.Drop("gpl", "blue").status())) << "shared is not blue's";
  EXPECT_TRUE(state_.Get("notes", "red").ok());
  EXPECT_TRUE(state_.Get("gpl", "red").ok());
  EXPECT_THAT(state_.List("red"), testing::SizeIs(2));
  EXPECT_THAT(state_.List("blue"), testing::SizeIs(1));
  EXPECT_THAT(state_.Locate(secret.chunks[0].id, "red"), testing::SizeIs(1));
  EXPECT_THAT(state_.Locate(secret.chunks[0].id, "blue"), testing::IsEmpty());
}

TEST_F(DirectoryStateTest, AChunkIsLocatedInEveryCorpusThatHasIt) {
  const Corpus whole = MakeCorpus("whole", "", 3, 1);
  Corpus part = whole;
  part.name = "part";
  part.chunks.erase(part.chunks.begin());
  ASSERT_TRUE(state_.Publish(whole, false, 0).ok());
  ASSERT_TRUE(state_.Publish(part, false, 0).ok());
  const std::vector<LocatedChunk> places = state_.Locate(whole.chunks[2].id, "");
  ASSERT_THAT(places, testing::SizeIs(2));
  EXPECT_EQ(places[0].corpus->name, "whole");
  EXPECT_EQ(places[0].ordinal, 2u);
  EXPECT_EQ(places[1].corpus->name, "part");
  EXPECT_EQ(places[1].ordinal, 1u);
  ASSERT_TRUE(state_.Drop("whole", "").ok());
  EXPECT_THAT(state_.Locate(whole.chunks[2].id, ""), testing::SizeIs(1));
  EXPECT_THAT(state_.Locate(whole.chunks[0].id, ""), testing::IsEmpty());
}

// Goal: dropping a corpus never orphans a copy that another corpus, of whichever tenant, places
// there.
TEST_F(DirectoryStateTest, OrphansAreWhatNoTenantsCorpusPlacesThere) {
  const Corpus mine = MakeCorpus("mine", "", 3, 1);
  Corpus theirs = mine;
  theirs.name = "theirs";
  theirs.tenant = "red";
  theirs.chunks.resize(1);
  ASSERT_TRUE(state_.Publish(mine, false, 0).ok());
  ASSERT_TRUE(state_.Publish(theirs, false, 0).ok());
  // A new version that keeps chunk 1 only: chunk 0 is red's too, so just chunk 2 is left over.
  Corpus smaller = mine;
  smaller.chunks = {mine.chunks[1]};
  DirectoryState::Orphans orphans;
  ASSERT_TRUE(state_.Publish(smaller, true, 0, &orphans).ok());
  ASSERT_THAT(orphans, testing::SizeIs(1));
  EXPECT_EQ(orphans[0], mine.chunks[2]);
  ASSERT_TRUE(state_.Drop("mine", "", &orphans).ok());
  ASSERT_THAT(orphans, testing::SizeIs(1));
  EXPECT_EQ(orphans[0].id, mine.chunks[1].id);
  ASSERT_TRUE(state_.Drop("theirs", "red", &orphans).ok());
  ASSERT_THAT(orphans, testing::SizeIs(1));
  EXPECT_EQ(orphans[0].id, mine.chunks[0].id);
}

TEST_F(DirectoryStateTest, AWatcherSeesTheStateThenEveryChangeInOrder) {
  ASSERT_TRUE(state_.Register(HolderAt("b"), seconds(2)).ok());
  ASSERT_TRUE(state_.Register(HolderAt("a"), seconds(1)).ok());
  ASSERT_TRUE(state_.Publish(MakeCorpus("gpl", "", 1, 1), false, 0).ok());
  ASSERT_TRUE(state_.Publish(MakeCorpus("notes", "red", 1, 2), false, 0).ok());
  auto watcher = state_.Watch("blue");
  ASSERT_TRUE(watcher.ok());
  EXPECT_THAT(Drain(**watcher), testing::ElementsAre("up a 2", "up b 1", "corpus gpl 1", "synced"));

  ASSERT_TRUE(state_.Register(HolderAt("b"), seconds(1)).ok());
  ASSERT_TRUE(state_.Publish(MakeCorpus("gpl", "", 2, 3), true, 0).ok());
  ASSERT_TRUE(state_.Drop("notes", "red").ok());
  ASSERT_TRUE(state_.Drop("gpl", "").ok());
  EXPECT_THAT(Drain(**watcher),
              testing::ElementsAre("gone b 1", "up b 3", "corpus gpl 3", "dropped gpl 3"));

  // Both leases end at once: in the order of names, whatever their ids.
  clock_.Advance(seconds(1));
  state_.Expire();
  EXPECT_THAT(Drain(**watcher), testing::ElementsAre("gone a 2", "gone b 3"));
}

TEST_F(DirectoryStateTest, AWatcherOfAllTenantsSeesPrivateCorpora) {
  ASSERT_TRUE(state_.Publish(MakeCorpus("notes", "red", 1, 1), false, 0).ok());
  auto watcher = state_.Watch("", /*all_tenants=*/true);
  ASSERT_TRUE(watcher.ok());
  EXPECT_THAT(Drain(**watcher), testing::ElementsAre("corpus notes 1", "synced"));
  ASSERT_TRUE(state_.Publish(MakeCorpus("notes", "red", 2, 2), true, 0).ok());
  ASSERT_TRUE(state_.Drop("notes", "red").ok());
  EXPECT_THAT(Drain(**watcher), testing::ElementsAre("corpus notes 2", "dropped notes 2"));
}

// So a slow watcher keeps no copy of the state, and cannot fall behind before it is synced.
TEST_F(DirectoryStateTest, ReadsTheSnapshotAsTheWatcherReachesIt) {
  ASSERT_TRUE(state_.Register(HolderAt("b"), Duration(0)).ok());
  ASSERT_TRUE(state_.Register(HolderAt("d"), Duration(0)).ok());
  for (const char* name : {"k", "m", "p"})
    ASSERT_TRUE(state_.Publish(MakeCorpus(name, "", 1, name[0]), false, 0).ok());
  const auto watcher = state_.Watch("");
  const auto next = [&] { return **(*watcher)->Next(clock_.Now()); };
  EXPECT_EQ(next().member.id.name, "b");
  // Behind its position: delivered after kSynced. Ahead of it: delivered in the state it then has.
  ASSERT_TRUE(state_.Register(HolderAt("a"), Duration(0)).ok());
  const auto ahead = state_.Register(HolderAt("c"), Duration(0));
  ASSERT_TRUE(state_.Register(HolderAt("d"), Duration(0)).ok());
  EXPECT_EQ(next().member.id.name, "c");
  EXPECT_EQ(next().member.epoch.value, 5u) << "d, in its second life";
  EXPECT_EQ(next().corpus->name, "k");
  ASSERT_TRUE(state_.Drop("k", "").ok());
  ASSERT_TRUE(state_.Drop("m", "").ok());
  const auto p = state_.Publish(MakeCorpus("p", "", 2, 'p'), true, 0);
  ASSERT_TRUE(state_.Deregister(ahead->lease_id).ok());
  EXPECT_EQ(next().corpus->version, *p);
  EXPECT_THAT(Drain(**watcher),
              testing::ElementsAre("synced", "up a 3", "dropped k 1", "gone c 4"));
}

TEST_F(DirectoryStateTest, WatchersDoNotWaitOnceTheyAreEnded) {
  const auto watcher = state_.Watch("");
  EXPECT_THAT(Drain(**watcher), testing::ElementsAre("synced"));
  std::thread waits([&] {
    const auto event = (*watcher)->Next(kInstantMax);
    EXPECT_TRUE(event.ok() && !event->has_value());
  });
  state_.EndWatches();
  waits.join();
  const auto later = state_.Watch("");
  EXPECT_THAT(Drain(**later), testing::ElementsAre("synced"));
  EXPECT_FALSE((*later)->Next(kInstantMax)->has_value());
}

TEST_F(DirectoryStateTest, NotifiesAWatcherThatFallsBehind) {
  auto slow = state_.Watch("");
  ASSERT_TRUE(slow.ok());
  auto quick = state_.Watch("");
  ASSERT_TRUE(quick.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(state_.Watch("").status()));
  EXPECT_THAT(Drain(**slow), testing::ElementsAre("synced"));
  EXPECT_THAT(Drain(**quick), testing::ElementsAre("synced"));
  for (size_t i = 0; i < WatchPosition::kBacklogMax / 2; ++i) {
    const auto grant = state_.Register(HolderAt("a"), Duration(0));
    ASSERT_TRUE(grant.ok() && state_.Deregister(grant->lease_id).ok());
  }
  EXPECT_THAT(Drain(**quick), testing::SizeIs(WatchPosition::kBacklogMax));
  ASSERT_TRUE(state_.Register(HolderAt("a"), Duration(0)).ok());
  EXPECT_THAT(Drain(**slow), testing::ElementsAre("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(Drain(**quick), testing::SizeIs(1));
  slow->reset();
  EXPECT_TRUE(state_.Watch("").ok()) << "its place is free again";
}

}  // namespace
}  // namespace ckv
