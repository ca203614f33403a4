// Goal: a holder keeps what its directory says of its chunks, no longer than it is true, and tells
// a directory that lost it; a directory that fails is asked again. Method: a real DirectoryState
// with a folder behind a source that a test can cut off, and parts in a real folder.

#include "server/upkeep/placement_keeper.h"

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "server/directory/durable_directory.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The local source, which can be cut off and moved to another directory.
class CuttableSource final : public PlacementSource {
 public:
  absl::StatusOr<Placed> ListPlacedCorpora(const HolderId& holder, const SeenDirectory& seen,
                                           Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr) return absl::UnavailableError("cut off");
    return LocalPlacementSource(state_).ListPlacedCorpora(holder, seen, deadline);
  }
  absl::StatusOr<bool> ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                     std::span<const DroppedCorpus> dropped,
                                     Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr) return absl::UnavailableError("cut off");
    return LocalPlacementSource(state_).ReportDropped(lease_id, seen, dropped, deadline);
  }
  absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                     Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr) return absl::UnavailableError("cut off");
    return LocalPlacementSource(state_).GetPart(holder, key, deadline);
  }
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                  Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr) return absl::UnavailableError("cut off");
    if (refusal_) CKV_RETURN_IF_ERROR(refusal_(part.corpus.name));
    reported_.push_back(absl::StrCat(part.corpus.name, " ", part.ordinals.size()));
    return LocalPlacementSource(state_).ReportPart(lease_id, part, deadline);
  }
  absl::Status FinishReport(uint64_t lease_id, Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr) return absl::UnavailableError("cut off");
    return LocalPlacementSource(state_).FinishReport(lease_id, deadline);
  }
  void Connect(DirectoryState* state) {
    absl::MutexLock lock(&mu_);
    state_ = state;
  }
  // Says with what the part of a corpus is refused.
  void set_refusal(std::function<absl::Status(const std::string& name)> refusal) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(refusal);
  }
  std::vector<std::string> reported() {
    absl::MutexLock lock(&mu_);
    return reported_;
  }

 private:
  absl::Mutex mu_;
  DirectoryState* state_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<std::string> reported_ ABSL_GUARDED_BY(mu_);
  std::function<absl::Status(const std::string&)> refusal_ ABSL_GUARDED_BY(mu_);
};

struct PlacementKeeperTest : testing::Test {
  PlacementKeeperTest() {
    path = test::TempPath("kept");
    std::filesystem::remove_all(path);
    std::filesystem::create_directory(path);
    options.self = {"h0"};
    options.clock = &clock;
    directory_options.clock = &clock;
    StartDirectory();
  }
  ~PlacementKeeperTest() override { StopHolder(); }
  // A directory with an empty folder.
  void StartDirectory() {
    static int count = 0;
    StartDirectory(test::TempPath(absl::StrCat("keeper", count++)));
  }
  void StartDirectory(const std::string& folder) {
    source.Connect(nullptr);
    directory.reset();
    ChangeLogOptions log;
    log.path = folder;
    directory_options.first_epoch += 1'000'000;
    auto opened = DurableDirectory::Open(directory_options, log);
    ASSERT_TRUE(opened.ok());
    directory = *std::move(opened);
    source.Connect(&directory->state());
  }
  // Copies the directory's folder to `folder`.copy. Then both work, until the holder has seen all.
  void CopyAndGoOn(const std::string& folder) {
    source.Connect(nullptr);
    directory.reset();
    std::filesystem::copy(folder, folder + ".copy");
    StartDirectory(folder);
    StartHolder();
    Join();
    ASSERT_TRUE(AwaitRounds(1));
  }
  void StartHolder() {
    std::string damaged;
    parts = *CorpusParts::Open(FileSystem::Real(), path, &damaged);
    keeper = std::make_unique<PlacementKeeper>(
        options, &source, parts.get(), [this](const ChunkId& id) { return !gone.contains(id); });
  }
  void StopHolder() {
    keeper.reset();
    parts.reset();
  }
  void Join() {
    lease = *directory->state().Register(
        {.id = options.self, .role = MemberRole::kHolder, .control_address = "h:1", .epoch = {}},
        seconds(60), kInstantMax, /*reports_parts=*/true);
    keeper->Note(lease, 0);
  }
  void Renew() {
    keeper->Note(lease, directory->state().KeepAlive(lease.lease_id)->placed_change_count);
  }
  // Until another round has succeeded; real time bounds it, so that a bug fails the test.
  bool AwaitRounds(uint64_t count) {
    return Await(
        [count](const PlacementKeeper::Stats& stats) { return stats.round_count >= count; });
  }
  bool Await(const std::function<bool(const PlacementKeeper::Stats&)>& condition) {
    const Instant deadline = Clock::Real()->Now() + seconds(30);
    while (!condition(keeper->stats())) {
      if (Clock::Real()->Now() > deadline) return false;
      absl::Mutex mu;
      absl::MutexLock lock(&mu);
      static const bool never = false;
      Clock::Real()->Await(mu, absl::Condition(&never), Clock::Real()->Now() + milliseconds(1));
    }
    return true;
  }
  // Chunks 0, 2, 4... on h0.
  uint64_t Publish(const std::string& name, size_t chunk_count, uint32_t seed,
                   const std::string& holder = "h0") {
    const Corpus corpus =
        test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
            .Publish(name, "", {{{holder}}, {{"h1"}}});
    return *directory->state().Publish(corpus, true, 0);
  }
  // The parts on disk, as a restarted holder would find them.
  std::vector<std::string> Kept() {
    std::string damaged;
    const auto kept = *CorpusParts::Open(FileSystem::Real(), path, &damaged);
    std::vector<std::string> names;
    for (const auto& [key, summary] : kept->List())
      names.push_back(absl::StrCat(key.second, " ", kept->Read(key)->ordinals.size()));
    return names;
  }

  ManualClock clock;
  std::string path;
  DirectoryOptions directory_options;
  std::unique_ptr<DurableDirectory> directory;
  CuttableSource source;
  PlacementKeeperOptions options;
  std::set<ChunkId> gone;
  std::unique_ptr<CorpusParts> parts;
  std::unique_ptr<PlacementKeeper> keeper;
  LeaseGrant lease;
};

TEST_F(PlacementKeeperTest, KeepsWhatTheDirectorySays) {
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

TEST_F(PlacementKeeperTest, KeepsAtOnceIfAsked) {
  StartHolder();
  EXPECT_TRUE(absl::IsDeadlineExceeded(keeper->KeepNow(clock.Now()))) << "it has no lease";
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  Publish("a", 4, 1);
  ASSERT_TRUE(keeper->KeepNow(kInstantMax).ok());  // no renewal has told of it
  Publish("b", 2, 2);
  ASSERT_TRUE(keeper->KeepNow(kInstantMax).ok());
  StopHolder();
  EXPECT_EQ(Kept(), (std::vector<std::string>{"a 2", "b 1"}));
}

TEST_F(PlacementKeeperTest, TellsADirectoryThatLostItsDisk) {
  const uint64_t version = Publish("a", 6, 1);
  const Corpus whole = **directory->state().Get("a", "");
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  StopHolder();
  StartDirectory();
  gone.insert(whole.chunks[2].id);  // it was dropped here
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(source.reported(), std::vector<std::string>{"a 2"});
  const auto unproven = directory->state().rebuilt(10).unproven;
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
  for (const ChunkPlacement& chunk : whole.chunks) gone.insert(chunk.id);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  EXPECT_EQ(Kept(), std::vector<std::string>{}) << "a part without its chunks";
  EXPECT_EQ(directory->state().rebuilt(10).unproven_count, 0u);
}

// A folder that was restored from a copy knows a version of before, and not the newest corpus.
TEST_F(PlacementKeeperTest, TellsADirectoryThatWasRestored) {
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
  EXPECT_EQ(directory->state().rebuilt(10).unproven_count, 2u);
  Publish("c", 2, 4);  // another round, while these are not proven
  Renew();
  ASSERT_TRUE(AwaitRounds(4));
  EXPECT_EQ(Kept(), (std::vector<std::string>{"a 4", "b 3", "c 1"}));
  EXPECT_EQ(parts->List().begin()->second.version, later) << "not the one of before";
}

// One that the operator gives up is not reported again, in later lives either.
TEST_F(PlacementKeeperTest, ForgetsAnUnprovenCorpusThatIsDropped) {
  Publish("a", 6, 1);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  StartDirectory();
  Join();
  ASSERT_TRUE(AwaitRounds(2));
  ASSERT_EQ(directory->state().rebuilt(10).unproven_count, 1u);
  ASSERT_TRUE(directory->state().Drop("a", "").ok());
  Renew();
  ASSERT_TRUE(AwaitRounds(3));
  EXPECT_EQ(Kept(), std::vector<std::string>{});
  EXPECT_EQ(directory->state().rebuilt(10).unproven_count, 0u);
}

// One that was away reports a corpus that another one has seen to be dropped.
TEST_F(PlacementKeeperTest, RemembersDropsForADirectoryThatLostItsDisk) {
  Publish("a", 6, 1, "h7");
  Publish("b", 6, 2);
  StartHolder();
  Join();
  ASSERT_TRUE(AwaitRounds(1));
  const CorpusPart part = *directory->state().PartOf({"h7"}, "", "a", 0, 100);
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
  EXPECT_TRUE(*directory->state().ReportPart(late->lease_id, part)) << "it is known to be gone";
  EXPECT_EQ(parts->seen().folder_id, lease.folder_id);
}

// A copy of the folder has a corpus that was dropped since, and one that left this holder.
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
  EXPECT_FALSE(state.rebuilt(10).old_copy.empty());
  EXPECT_TRUE(absl::IsNotFound(state.Get("dropped", "").status()));
  EXPECT_TRUE(absl::IsNotFound(state.Get("moved", "").status()));
  EXPECT_TRUE(state.Get("stays", "").ok());
  EXPECT_EQ(Kept(), std::vector<std::string>{"stays 2"});
}

// Its disk has seen much, and nothing of what h7 was to have. h7 itself may be away for good.
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

// A round that fails in the middle goes on there, and one part that is refused stops no other.
TEST_F(PlacementKeeperTest, ReportsGoOnWhereTheyStopped) {
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

TEST_F(PlacementKeeperTest, ADirectoryThatDoesNotAnswerIsAskedAgain) {
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
