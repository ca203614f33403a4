// Incarnations of a directory and its holders, for tests of what it learns from them. An
// incarnation is a new object over a folder, and a lost disk is another folder. Holders keep what
// an incarnation gave them, and report it to the next, as server/upkeep/placement_keeper.h does.

#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/directory/durable_directory.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv::test {

inline constexpr uint64_t kFirstStart = 1'700'000'000'000;

// Chunks on h0, h1, h2 in turn, each with the next one as a replica.
inline Corpus SpreadOver(const std::string& name, size_t chunk_count, uint32_t seed,
                         const std::string& tenant = "") {
  return MakeTestCorpus(TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
      .Publish(name, tenant, {{{"h0"}, {"h1"}}, {{"h1"}, {"h2"}}, {{"h2"}, {"h0"}}});
}

struct RebuildFixture : testing::Test {
  RebuildFixture() {
    options.clock = &clock;
    options.first_epoch = kFirstStart;
    log.files = &files;
    log.clock = &clock;
    LoseDisk();
  }
  void LoseDisk() {
    static int count = 0;
    log.path = TempPath(absl::StrCat("rebuild", count++));
  }
  DirectoryState& Start() {
    directory.reset();
    options.first_epoch += clock_step;
    auto opened = DurableDirectory::Open(options, log);
    EXPECT_TRUE(opened.ok()) << opened.status();
    directory = *std::move(opened);
    leases.clear();
    return directory->state();
  }
  uint64_t Join(const std::string& name) {
    const Member member = {.id = {name},
                           .role = MemberRole::kHolder,
                           .control_address = "127.0.0.1:7400",
                           .epoch = epochs[name]};
    const auto grant = directory->state().Register(member, std::chrono::seconds(60), kInstantMax,
                                                   /*reports_parts=*/true);
    EXPECT_TRUE(grant.ok()) << grant.status();
    EXPECT_GT(grant->epoch, epochs[name]) << "never twice, whatever was lost";
    epochs[name] = grant->epoch;
    grants[name] = *grant;
    return leases[name] = grant->lease_id;
  }
  // A copy of the folder as it is now, which is not open.
  std::string Copy() {
    directory.reset();
    std::string copy = log.path + ".copy";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(log.path, copy);
    return copy;
  }
  // The corpora and drops that a holder's keeper would have.
  void Keep(const std::string& name) {
    auto& kept = parts[name];
    kept.clear();
    const HolderReports::News news = directory->state().reports().NewsSince(seen[name]);
    seen[name] = news.seen;
    drops[name].insert(drops[name].end(), news.dropped.begin(), news.dropped.end());
    for (const auto& corpus :
         directory->state().reports().ListPlacedCorpora({name}, std::nullopt, 1000))
      kept.push_back(
          *directory->state().reports().PartOf({name}, corpus->tenant, corpus->name, 0, 1000));
  }
  // Reports drops if they are wanted. Returns whether they were.
  bool ReportDrops(const std::string& name, uint64_t lease) {
    DirectoryState& state = directory->state();
    const auto wanted = state.reports().NoteSeen(lease, seen[name]);
    EXPECT_TRUE(wanted.ok()) << wanted.status();
    if (!*wanted) return false;
    std::vector<DroppedCorpus> all = drops[name];
    for (const auto& corpus : state.reports().ListPlacedCorpora({name}, std::nullopt, 1000)) {
      const auto is_it = [&](const CorpusPart& part) { return part.corpus.name == corpus->name; };
      if (corpus->version <= seen[name].number && seen[name].folder_id == grants[name].folder_id &&
          std::none_of(parts[name].begin(), parts[name].end(), is_it)) {
        all.push_back({corpus->tenant, corpus->name, seen[name].folder_id, corpus->version,
                       seen[name].number});
      }
    }
    const absl::Status status = state.reports().ReportDropped(lease, seen[name], all, kInstantMax);
    EXPECT_TRUE(status.ok()) << status;
    return true;
  }
  // Reports all drops and parts, and returns how many parts were of no use.
  int Report(const std::string& name) {
    const uint64_t lease = Join(name);
    ReportDrops(name, lease);
    int superseded = 0;
    for (const CorpusPart& part : parts[name]) {
      const auto reported = directory->state().reports().ReportPart(lease, part);
      EXPECT_TRUE(reported.ok()) << reported.status();
      superseded += *reported ? 1 : 0;
    }
    EXPECT_TRUE(directory->state().reports().FinishReport(lease).ok());
    return superseded;
  }
  void PassGrace() {
    clock.Advance(options.rebuild_grace);
    directory->state().reports().PublishRebuilt();
  }
  // Waits until the corpus is there; another thread publishes it.
  std::shared_ptr<const Corpus> AwaitCorpus(const std::string& name, uint64_t version) {
    const Instant give_up = Clock::Real()->Now() + std::chrono::seconds(30);
    while (Clock::Real()->Now() < give_up) {
      const auto corpus = directory->state().Get(name, "");
      if (corpus.ok() && (*corpus)->version == version) return *corpus;
    }
    return nullptr;
  }

  uint64_t clock_step = 1'000'000;  // of the wall clock, between incarnations
  ManualClock clock;
  FaultFileSystem files;
  DirectoryOptions options;
  ChangeLogOptions log;
  std::unique_ptr<DurableDirectory> directory;
  std::map<std::string, uint64_t> leases;
  std::map<std::string, Epoch> epochs;
  std::map<std::string, LeaseGrant> grants;
  // As holders keep them.
  std::map<std::string, std::vector<CorpusPart>> parts;
  std::map<std::string, SeenDirectory> seen;
  std::map<std::string, std::vector<DroppedCorpus>> drops;
};

}  // namespace ckv::test
