// A holder's placement keeper and a directory with a folder, for tests.

#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "server/directory/durable_directory.h"
#include "server/upkeep/placement_keeper.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv::test {

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
  absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                             Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr || is_deaf_to_lacking_) return absl::UnavailableError("cut off");
    lacking_.assign(ids.begin(), ids.end());
    ++lacking_count_;
    return LocalPlacementSource(state_).ReportLacking(lease_id, ids, deadline);
  }
  absl::StatusOr<std::vector<uint32_t>> CountReferences(const HolderId& holder,
                                                        std::span<const ChunkId> ids,
                                                        Instant deadline) override {
    absl::MutexLock lock(&mu_);
    if (state_ == nullptr) return absl::UnavailableError("cut off");
    return LocalPlacementSource(state_).CountReferences(holder, ids, deadline);
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
  // Sets the function that returns the error with which the part of a corpus is refused.
  void set_refusal(std::function<absl::Status(const std::string& name)> refusal) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(refusal);
  }
  // Fails reports of lacking chunks.
  void set_deaf_to_lacking(bool is_deaf) {
    absl::MutexLock lock(&mu_);
    is_deaf_to_lacking_ = is_deaf;
  }
  std::vector<ChunkId> lacking() {
    absl::MutexLock lock(&mu_);
    return lacking_;
  }
  size_t lacking_count() {
    absl::MutexLock lock(&mu_);
    return lacking_count_;
  }
  std::vector<std::string> reported() {
    absl::MutexLock lock(&mu_);
    return reported_;
  }

 private:
  absl::Mutex mu_;
  DirectoryState* state_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<std::string> reported_ ABSL_GUARDED_BY(mu_);
  std::vector<ChunkId> lacking_ ABSL_GUARDED_BY(mu_);  // as last reported
  size_t lacking_count_ ABSL_GUARDED_BY(mu_) = 0;      // number of reports
  bool is_deaf_to_lacking_ ABSL_GUARDED_BY(mu_) = false;
  std::function<absl::Status(const std::string&)> refusal_ ABSL_GUARDED_BY(mu_);
};

struct PlacementKeeperTest : testing::Test {
  PlacementKeeperTest() {
    path = TempPath("kept");
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
    StartDirectory(TempPath(absl::StrCat("keeper", count++)));
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
  // Copies the directory's folder to `folder`.copy. Then runs both until the holder has seen all.
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
        options, &source, parts.get(),
        PlacedChunks{.has =
                         [this](const ChunkId& id) {
                           absl::MutexLock lock(&gone_mu);
                           return !gone.contains(id);
                         },
                     .change_count = [this] { return change_count.load(); },
                     .drop =
                         [this](const ChunkId& id, Duration idle_min) {
                           absl::MutexLock lock(&gone_mu);
                           if (in_use.contains(id) || idle_min != options.drop_after)
                             return absl::FailedPreconditionError("in use");
                           if (!gone.insert(id).second) return absl::NotFoundError("gone");
                           dropped.push_back(id);
                           return absl::OkStatus();
                         }});
  }
  void StopHolder() {
    keeper.reset();
    parts.reset();
  }
  void Join() {
    lease = *directory->state().Register(
        {.id = options.self, .role = MemberRole::kHolder, .control_address = "h:1", .epoch = {}},
        std::chrono::seconds(60), kInstantMax, /*reports_parts=*/true);
    keeper->Note(lease, 0);
  }
  void Renew() {
    keeper->Note(lease, directory->state().KeepAlive(lease.lease_id)->placed_change_count);
  }
  // Waits until `count` rounds have succeeded. Real time bounds it, so that a bug fails the test.
  bool AwaitRounds(uint64_t count) {
    return Await(
        [count](const PlacementKeeper::Stats& stats) { return stats.round_count >= count; });
  }
  bool Await(const std::function<bool(const PlacementKeeper::Stats&)>& condition) {
    const Instant deadline = Clock::Real()->Now() + std::chrono::seconds(30);
    while (!condition(keeper->stats())) {
      if (Clock::Real()->Now() > deadline) return false;
      absl::Mutex mu;
      absl::MutexLock lock(&mu);
      static const bool never = false;
      Clock::Real()->Await(mu, absl::Condition(&never),
                           Clock::Real()->Now() + std::chrono::milliseconds(1));
    }
    return true;
  }
  // Chunks 0, 2, 4... on h0.
  uint64_t Publish(const std::string& name, size_t chunk_count, uint32_t seed,
                   const std::string& holder = "h0") {
    const Corpus corpus =
        MakeTestCorpus(TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
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
  // Removes a chunk of the holder, or restores it.
  void Lose(const ChunkId& id) {
    absl::MutexLock lock(&gone_mu);
    gone.insert(id);
    ++change_count;
  }
  void Restore(const ChunkId& id) {
    absl::MutexLock lock(&gone_mu);
    gone.erase(id);
    ++change_count;
  }

  absl::Mutex gone_mu;
  std::set<ChunkId> gone, in_use;
  std::vector<ChunkId> dropped;  // by the keeper
  std::atomic<uint64_t> change_count = 0;
  std::unique_ptr<CorpusParts> parts;
  std::unique_ptr<PlacementKeeper> keeper;
  LeaseGrant lease;
};

}  // namespace ckv::test
