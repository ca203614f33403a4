// Goal: a holder keeps what its directory reports of its chunks, only as long as it is true, and
// reports it to a directory that lost it; a directory that fails is queried again. Method: a real
// DirectoryState with a folder behind a source that a test can cut off, and parts in a real folder.

#include "server/upkeep/placement_keeper.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "server/directory/durable_directory.h"
#include "tests/server/upkeep/placement_fixture.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using test::PlacementKeeperTest;

TEST_F(PlacementKeeperTest, KeepsTheDirectorysEntries) {
  Publish("a", 5, 1);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(Kept(), std::vector<std::string>{"a 3"});
  EXPECT_TRUE(directory->state().MissingHolders().empty()) << "it has reported";
  Publish("a", 9, 2);
  Publish("b", 2, 3);
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(Kept(), (std::vector<std::string>{"a 5", "b 1"}));
  Publish("a", 9, 2, "h7");  // moved away
  ASSERT_TRUE(directory->state().Drop("b", "").ok());
  Renew();
  ASSERT_TRUE(AwaitRounds(3));
  EXPECT_EQ(Kept(), std::vector<std::string>{});
  Renew();
  clock.Advance(seconds(10));
  EXPECT_EQ(keeper->stats().round_count, 3u) << "nothing changed";
}

TEST_F(PlacementKeeperTest, KeepsAtOnceOnRequest) {
  StartHolder();
  EXPECT_TRUE(absl::IsDeadlineExceeded(keeper->KeepNow(clock.Now()))) << "it has no lease";
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  Publish("a", 4, 1);
  ASSERT_TRUE(keeper->KeepNow(kInstantMax).ok());  // no renewal has reported it
  Publish("b", 2, 2);
  ASSERT_TRUE(keeper->KeepNow(kInstantMax).ok());
  StopHolder();
  EXPECT_EQ(Kept(), (std::vector<std::string>{"a 2", "b 1"}));
}

TEST_F(PlacementKeeperTest, ReportsToADirectoryThatLostItsDisk) {
  const uint64_t version = Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  StopHolder();
  StartDirectory();
  Lose(whole.chunks[2].id);  // it was dropped here
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(source.reported(), std::vector<std::string>{"a 2"});
  const auto unproven = directory->state().reports().rebuilt(10).unproven;
  ASSERT_EQ(unproven.size(), 1u);
  EXPECT_EQ(unproven[0].version, version);
  EXPECT_EQ(unproven[0].missing_count, 4u);
  EXPECT_EQ(Kept(), std::vector<std::string>{"a 3"}) << "as long as nobody knows better";
  // The corpus is there again, under this directory's folder.
  Publish("a", 6, 1);
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(parts->List().begin()->second.folder_id, lease.folder_id);
}

TEST_F(PlacementKeeperTest, ForgetsWhatIsOfNoUse) {
  Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  // Dropped while the holder was away.
  StopHolder();
  ASSERT_TRUE(directory->state().Drop("a", "").ok());
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(source.reported(), std::vector<std::string>{"a 3"});
  EXPECT_EQ(Kept(), std::vector<std::string>{});

  Publish("a", 6, 1);
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  StopHolder();
  StartDirectory();
  for (const ChunkPlacement& chunk : whole.chunks) Lose(chunk.id);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(Kept(), std::vector<std::string>{}) << "a part without its chunks";
  EXPECT_EQ(directory->state().reports().rebuilt(10).unproven_count, 0u);
}

// A folder that was restored from a copy has an earlier version, and not the newest corpus.
TEST_F(PlacementKeeperTest, ReportsToADirectoryThatWasRestored) {
  const std::string folder = test::TempPath("restored");
  StartDirectory(folder);
  Publish("a", 4, 1);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  directory.reset();
  source.Connect(nullptr);
  std::filesystem::copy(folder, folder + ".copy");
  StartDirectory(folder);
  const uint64_t later = Publish("a", 8, 2);
  Publish("b", 6, 3);
  Join();
  ASSERT_TRUE(AwaitRounds(2));
  ASSERT_EQ(Kept(), (std::vector<std::string>{"a 4", "b 3"}));

  StartDirectory(folder + ".copy");
  Join();
  ASSERT_TRUE(AwaitRounds(3));
  EXPECT_EQ(source.reported(), (std::vector<std::string>{"a 4", "b 3"}));
  EXPECT_EQ(directory->state().reports().rebuilt(10).unproven_count, 2u);
  Publish("c", 2, 4);  // another round, while these are not proven
  Renew();
  ASSERT_TRUE(AwaitRounds(4));
  EXPECT_EQ(Kept(), (std::vector<std::string>{"a 4", "b 3", "c 1"}));
  EXPECT_EQ(parts->List().begin()->second.version, later) << "not the one of before";
}

// A corpus that the operator gives up is not reported again, not even after a restart.
TEST_F(PlacementKeeperTest, ForgetsAnUnprovenCorpusThatIsDropped) {
  Publish("a", 6, 1);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  StartDirectory();
  Join();
  ASSERT_TRUE(AwaitRounds(2));
  ASSERT_EQ(directory->state().reports().rebuilt(10).unproven_count, 1u);
  ASSERT_TRUE(directory->state().Drop("a", "").ok());
  Renew();
  ASSERT_TRUE(AwaitRounds(3));
  EXPECT_EQ(Kept(), std::vector<std::string>{});
  EXPECT_EQ(directory->state().reports().rebuilt(10).unproven_count, 0u);
}

// A holder that was offline reports a corpus whose drop another holder has seen.
TEST_F(PlacementKeeperTest, RemembersDropsForADirectoryThatLostItsDisk) {
  Publish("a", 6, 1, "h7");
  Publish("b", 6, 2);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  const CorpusPart part = *directory->state().reports().PartOf({"h7"}, "", "a", 0, 100);
  ASSERT_TRUE(directory->state().Drop("a", "").ok());
  Renew();
  ASSERT_TRUE(AwaitRounds(2)) << "it is told, because h7 is away";
  EXPECT_EQ(parts->dropped().size(), 1u);
  StopHolder();
  StartDirectory();
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  const auto late = directory->state().Register(
      {.id = {"h7"}, .role = MemberRole::kHolder, .control_address = "h:2", .epoch = {}},
      seconds(60));
  EXPECT_TRUE(*directory->state().reports().ReportPart(late->lease_id, part))
      << "it is known to be gone";
  EXPECT_EQ(parts->seen().folder_id, lease.folder_id);
}

// A copy of the folder has a corpus that was dropped since, and one that was moved off this holder.
TEST_F(PlacementKeeperTest, HasSeenWhatAnOldCopyForgot) {
  const std::string folder = test::TempPath("old_copy");
  StartDirectory(folder);
  Publish("dropped", 4, 1);
  Publish("moved", 4, 2);
  Publish("stays", 4, 3);
  ASSERT_NO_FATAL_FAILURE(CopyAndGoOn(folder));
  ASSERT_TRUE(directory->state().Drop("dropped", "").ok());
  Publish("moved", 4, 2, "h7");
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  StopHolder();
  StartDirectory(folder + ".copy");
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  DirectoryState& state = directory->state();
  EXPECT_FALSE(state.reports().rebuilt(10).old_copy.empty());
  EXPECT_TRUE(absl::IsNotFound(state.Get("dropped", "").status()));
  EXPECT_TRUE(absl::IsNotFound(state.Get("moved", "").status()));
  EXPECT_TRUE(state.Get("stays", "").ok());
  EXPECT_EQ(Kept(), std::vector<std::string>{"stays 2"});
}

// The disk was written under the name h0, so it has no record of what h7 was to have. Under the
// name h7 it proves no drop. The real h7 may be offline for good.
TEST_F(PlacementKeeperTest, HasSeenNothingUnderAnotherName) {
  const std::string folder = test::TempPath("other_name");
  StartDirectory(folder);
  Publish("others", 4, 1, "h7");
  ASSERT_NO_FATAL_FAILURE(CopyAndGoOn(folder));
  Publish("later", 4, 2);
  Renew();
  ASSERT_TRUE(AwaitRounds(2));
  StopHolder();
  StartDirectory(folder + ".copy");
  options.self = {"h7"};
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_TRUE(directory->state().Get("others", "").ok());
}

// A holder that was given another name has parts that are not its own.
TEST_F(PlacementKeeperTest, PartsOfAnotherNameHoldNothingUp) {
  Publish("a", 6, 1);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  StopHolder();
  StartDirectory();
  options.self = {"renamed"};
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_TRUE(source.reported().empty());
  EXPECT_TRUE(directory->state().MissingHolders().empty());
  EXPECT_EQ(Kept(), std::vector<std::string>{"a 3"});
}

// A round that fails in the middle continues there, and a refused part does not stop the others.
TEST_F(PlacementKeeperTest, ReportsContinueWhereTheyStopped) {
  for (const char* name : {"a", "b", "c"}) Publish(name, 6, 1 + name[0]);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  StartDirectory();
  source.set_refusal([](const std::string& name) {
    return name == "b" ? absl::UnavailableError("cut off") : absl::OkStatus();
  });
  Join();
  ASSERT_TRUE(Await([](const auto& stats) { return !stats.last_error.ok(); }));
  source.set_refusal([](const std::string& name) {
    return name == "b" ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
  });
  clock.Advance(options.retry_pause);
  ASSERT_TRUE(Await([](const auto& stats) {
    return absl::IsResourceExhausted(stats.last_error) && stats.reported_count == 2;
  }));
  EXPECT_EQ(source.reported(), (std::vector<std::string>{"a 3", "c 3"}));
  EXPECT_EQ(directory->state().MissingHolders(), std::vector<HolderId>{{"h0"}});
  source.set_refusal({});
  clock.Advance(options.retry_pause);
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(source.reported(), (std::vector<std::string>{"a 3", "c 3", "b 3"}));
  EXPECT_TRUE(directory->state().MissingHolders().empty());
}

TEST_F(PlacementKeeperTest, QueriesADirectoryAgainThatDoesNotAnswer) {
  Publish("a", 6, 1);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  source.Connect(nullptr);
  Publish("b", 6, 2);
  Renew();
  ASSERT_TRUE(Await([](const auto& stats) { return !stats.last_error.ok(); }));
  source.Connect(&directory->state());
  EXPECT_EQ(Kept(), std::vector<std::string>{"a 3"});
  clock.Advance(options.retry_pause);
  ASSERT_TRUE(AwaitRounds(2));
  EXPECT_EQ(Kept(), (std::vector<std::string>{"a 3", "b 3"}));
  EXPECT_TRUE(keeper->stats().last_error.ok());
}

}  // namespace
}  // namespace ckv
