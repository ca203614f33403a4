// Goal: an answer to a change means that it survives; no one sees a change before that; a restart
// gives no epoch and no version twice (I4). Method: real folders, over a file system whose syncs a
// test holds or fails; restarts are new objects over the same folder.

#include "server/directory/durable_directory.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using absl::StatusCode;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Call = FaultFileSystem::Call;

Member HolderOf(const std::string& name, const std::string& address = "127.0.0.1:7400") {
  return {.id = {name}, .role = MemberRole::kHolder, .control_address = address, .epoch = {}};
}

Corpus CorpusOf(const std::string& name, size_t chunk_count, uint32_t seed,
                const std::string& holder = "a", const std::string& tenant = "") {
  return test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
      .Publish(name, tenant, {{HolderId{holder}}});
}

struct DurableDirectoryTest : testing::Test {
  DurableDirectoryTest() {
    static int count = 0;
    options.clock = &clock;
    log.path = test::TempPath(absl::StrCat("durable", count++));
    log.files = &files;
    log.clock = &clock;
  }
  // Another incarnation over the same folder.
  DirectoryState& Start() {
    directory.reset();
    auto opened = DurableDirectory::Open(options, log);
    EXPECT_TRUE(opened.ok()) << opened.status();
    directory = *std::move(opened);
    return directory->state();
  }
  std::vector<std::string> Listed(const std::string& tenant = "") {
    std::vector<std::string> names;
    for (const auto& corpus : directory->state().List(tenant))
      names.push_back(absl::StrCat(corpus->name, " ", corpus->version));
    return names;
  }

  ManualClock clock;
  FaultFileSystem files;
  DirectoryOptions options;
  ChangeLogOptions log;
  std::unique_ptr<DurableDirectory> directory;
};

// Ids that were made with a key must be found again after a restart.
TEST_F(DurableDirectoryTest, ATenantKeepsItsKey) {
  log.log_bytes_min = 1;
  DirectoryState* state = &Start();
  EXPECT_TRUE(state->TenantKeyOf("acme", /*make=*/false)->IsZero());
  const auto acme = state->TenantKeyOf("acme", true), other = state->TenantKeyOf("other", true);
  ASSERT_TRUE(acme.ok() && other.ok());
  EXPECT_FALSE(acme->IsZero());
  EXPECT_NE(*acme, *other);
  EXPECT_EQ(*state->TenantKeyOf("acme", true), *acme);
  EXPECT_TRUE(state->TenantKeyOf("", true)->IsZero());
  EXPECT_EQ(state->TenantKeyOf("no name", true).status().code(), StatusCode::kInvalidArgument);
  state = &Start();
  EXPECT_EQ(*state->TenantKeyOf("acme", /*make=*/false), *acme);
  // From a snapshot, too.
  const auto stats = [&] { return directory->log()->stats(); };
  for (uint32_t i = 0; stats().snapshot_count == 0; ++i)
    ASSERT_TRUE(state->Publish(CorpusOf("much", 9, i), true, 0).ok());
  state = &Start();
  EXPECT_EQ(*state->TenantKeyOf("acme", true), *acme);
  EXPECT_EQ(*state->TenantKeyOf("other", true), *other);
}

// A drain lasts until it is ended, with a log and with a snapshot.
TEST_F(DurableDirectoryTest, ADrainSurvivesARestart) {
  log.log_bytes_min = 1;
  const auto draining = [this] {
    std::vector<std::string> names = directory->state().replication().Facts().draining;
    return names;
  };
  const auto drain = [this](const std::string& name, bool on) {
    return directory->state().replication().SetDraining({name}, on, kInstantMax);
  };
  Start();
  EXPECT_EQ(drain("a", true).code(), StatusCode::kNotFound);
  ASSERT_TRUE(directory->state().Register(HolderOf("a"), seconds(3)).ok());
  ASSERT_TRUE(directory->state().Register(HolderOf("b", "127.0.0.1:7401"), seconds(3)).ok());
  ASSERT_TRUE(drain("a", true).ok());
  ASSERT_TRUE(drain("b", true).ok());
  for (int restart = 0; restart < 3; ++restart) {
    Start();
    EXPECT_THAT(draining(), ElementsAre("a", "b"));
  }
  ASSERT_TRUE(directory->state().Register(HolderOf("a"), seconds(3)).ok());
  EXPECT_TRUE(directory->state().Members()[0].is_draining);
  // It may be ended without the holder.
  ASSERT_TRUE(drain("b", false).ok());
  Start();
  EXPECT_THAT(draining(), ElementsAre("a"));
  ASSERT_TRUE(drain("a", false).ok());
  Start();
  EXPECT_THAT(draining(), IsEmpty());
  // A change that the disk refuses is not made.
  ASSERT_TRUE(directory->state().Register(HolderOf("a"), seconds(3)).ok());
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("no space") : absl::OkStatus();
  });
  EXPECT_FALSE(drain("a", true).ok());
  EXPECT_THAT(draining(), IsEmpty());
}

TEST_F(DurableDirectoryTest, AKeyThatIsNotDurableIsNotGiven) {
  DirectoryState* state = &Start();
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kSync ? absl::UnavailableError("no") : absl::OkStatus();
  });
  EXPECT_EQ(state->TenantKeyOf("acme", true).status().code(), StatusCode::kUnavailable);
  files.set_hook({});
  const auto key = state->TenantKeyOf("acme", true);
  ASSERT_TRUE(key.ok()) << key.status();
  state = &Start();
  EXPECT_EQ(*state->TenantKeyOf("acme", true), *key);
}

// A directory in memory would forget them.
TEST_F(DurableDirectoryTest, InMemoryThereAreNoKeys) {
  log.path.clear();
  EXPECT_TRUE(Start().TenantKeyOf("acme", true)->IsZero());
}

// Token hashes survive, so that prompts find the same chunks again.
TEST_F(DurableDirectoryTest, PrintsSurviveARestart) {
  DirectoryState* state = &Start();
  Corpus corpus = CorpusOf("gpl", 3, 1);
  corpus.chunks[1].set_token_hash({.head = 5, .whole = 6});
  ASSERT_TRUE(state->Publish(corpus, false, 0).ok());
  state = &Start();
  const std::vector<uint64_t> heads = {4, 5};
  const PromptChunks found = state->FindPrompt(heads, {}, "");
  ASSERT_EQ(found.chunks.size(), 1u);
  EXPECT_EQ(found.chunks[0].id, corpus.chunks[1].id);
  EXPECT_EQ(found.chunks[0].token_hash, corpus.chunks[1].token_hash());
  // Holders keep none, so a part has none.
  EXPECT_EQ(state->reports().PartOf({"a"}, "", "gpl", 0, 9)->corpus.chunks[1].token_hash(),
            TokenHash());
}

// A publisher may provide none, for example ckvctl corpus partition.
TEST_F(DurableDirectoryTest, PrintsOutliveAPublisherWithoutAny) {
  DirectoryState* state = &Start();
  Corpus corpus = CorpusOf("gpl", 3, 1);
  for (uint64_t i = 0; i < 3; ++i) corpus.chunks[i].set_token_hash({.head = 5 + i, .whole = 6});
  ASSERT_TRUE(state->Publish(corpus, false, 0).ok());
  const TokenHash last = corpus.chunks[2].token_hash(), own = {.head = 77, .whole = 78};
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_token_hash({});
  corpus.chunks[1].set_token_hash(own);  // a publisher's own value counts
  corpus.chunks.erase(corpus.chunks.begin());
  ASSERT_TRUE(state->Publish(corpus, /*replace=*/true, 0).ok());
  const auto now = state->Get("gpl", "");
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ((*now)->chunks[0].token_hash(), own);
  EXPECT_EQ((*now)->chunks[1].token_hash(), last);
}

TEST_F(DurableDirectoryTest, ARestartForgetsNoCorpusAndNoDrop) {
  DirectoryState* state = &Start();
  EXPECT_TRUE(directory->found().is_new);
  const auto gpl = state->Publish(CorpusOf("gpl", 3, 1), false, 0);
  const auto mine = state->Publish(CorpusOf("gpl", 2, 2, "b", "acme"), false, 0);
  ASSERT_TRUE(gpl.ok() && mine.ok() && state->Publish(CorpusOf("old", 1, 3), false, 0).ok());
  const auto again = state->Publish(CorpusOf("gpl", 5, 4), true, *gpl);
  ASSERT_TRUE(again.ok() && state->Drop("old", "").ok());
  const Corpus before = **state->Get("gpl", "");

  state = &Start();
  EXPECT_FALSE(directory->found().is_new);
  EXPECT_EQ(directory->found().corpus_count, 2u);
  EXPECT_EQ(directory->found().record_count, 5u);
  EXPECT_EQ(**state->Get("gpl", ""), before);
  EXPECT_THAT(Listed("acme"),
              ElementsAre(absl::StrCat("gpl ", *again), absl::StrCat("gpl ", *mine)));
  EXPECT_EQ(state->counts().placement_count, 7u);
  // Each corpus still has the version that a client saw.
  EXPECT_EQ(state->Publish(CorpusOf("gpl", 1, 5), true, *gpl).status().code(),
            StatusCode::kFailedPrecondition);
  const auto later = state->Publish(CorpusOf("gpl", 1, 5), true, *again);
  ASSERT_TRUE(later.ok());
  EXPECT_GT(*later, *again);
}

TEST_F(DurableDirectoryTest, NoEpochAndNoVersionIsGivenTwice) {
  uint64_t epoch = 0, version = 0;
  for (int incarnation = 0; incarnation < 5; ++incarnation) {
    DirectoryState& state = Start();
    // The wall clock jumped back: the folder has a higher value.
    options.first_epoch = 1'000'000 / static_cast<uint64_t>(incarnation + 1);
    for (int i = 0; i < (incarnation == 2 ? 10'000 : 3); ++i) {
      const auto grant = state.Register(HolderOf("a"), seconds(3));
      ASSERT_TRUE(grant.ok()) << grant.status();
      ASSERT_GT(grant->epoch.value, epoch);
      epoch = grant->epoch.value;
    }
    const auto published = state.Publish(CorpusOf("gpl", 1, 1), true, 0);
    ASSERT_TRUE(published.ok());
    ASSERT_GT(*published, version);
    version = *published;
    // The version of a dropped corpus is not given again either.
    if (incarnation % 2 == 0) {
      ASSERT_TRUE(state.Drop("gpl", "").ok());
    }
  }
  options.first_epoch = epoch + 5'000'000;
  const auto grant = Start().Register(HolderOf("a"), seconds(3));
  EXPECT_EQ(grant->epoch.value, epoch + 5'000'001) << "a clock that is ahead is followed";
}

TEST_F(DurableDirectoryTest, RefusesALeaseOfAnEarlierIncarnation) {
  const auto before = Start().Register(HolderOf("a"), seconds(3));
  ASSERT_TRUE(before.ok());
  DirectoryState& state = Start();
  EXPECT_TRUE(absl::IsNotFound(state.KeepAlive(before->lease_id).status()));
  EXPECT_THAT(state.Members(), IsEmpty());
  const auto after = state.Register(HolderOf("a"), seconds(3));
  ASSERT_TRUE(after.ok());
  EXPECT_GT(after->epoch, before->epoch);
  EXPECT_TRUE(absl::IsNotFound(state.KeepAlive(before->lease_id).status()));
}

TEST_F(DurableDirectoryTest, ListsHoldersThatHaveNotReturned) {
  DirectoryState* state = &Start();
  EXPECT_THAT(state->MissingHolders(), IsEmpty());
  ASSERT_TRUE(state->Publish(CorpusOf("x", 1, 1, "h1"), false, 0).ok());
  ASSERT_TRUE(state->Publish(CorpusOf("y", 1, 2, "h2"), false, 0).ok());
  ASSERT_TRUE(state->Publish(CorpusOf("z", 1, 3, "h3"), false, 0).ok());
  EXPECT_THAT(state->MissingHolders(), IsEmpty()) << "who publishes knows of them";
  state = &Start();
  EXPECT_THAT(state->MissingHolders(), ElementsAre(HolderId{"h1"}, HolderId{"h2"}, HolderId{"h3"}));
  // Holders that have not returned yet must not be taken for dead.
  EXPECT_EQ(state->CheckReturned().code(), StatusCode::kUnavailable);
  clock.Advance(options.lease_ttl);
  EXPECT_TRUE(state->CheckReturned().ok()) << "they had their time";
  state = &Start();
  ASSERT_TRUE(state->Register(HolderOf("h2"), seconds(3)).ok());
  EXPECT_THAT(state->MissingHolders(), ElementsAre(HolderId{"h1"}, HolderId{"h3"}));
  clock.Advance(seconds(4));
  state->Expire();
  EXPECT_THAT(state->MissingHolders(), ElementsAre(HolderId{"h1"}, HolderId{"h3"}))
      << "it has reported once";
  // Nothing is placed there any more.
  ASSERT_TRUE(state->Drop("x", "").ok());
  ASSERT_TRUE(state->Publish(CorpusOf("z", 1, 3, "h2"), true, 0).ok());
  EXPECT_THAT(state->MissingHolders(), IsEmpty());
  state = &Start();
  EXPECT_FALSE(state->CheckReturned().ok());
  ASSERT_TRUE(state->Register(HolderOf("h2"), seconds(3)).ok());
  EXPECT_TRUE(state->CheckReturned().ok()) << "all are back";
}

TEST_F(DurableDirectoryTest, AFullDiskRefusesChangesAndServesReads) {
  DirectoryState& state = Start();
  const auto version = state.Publish(CorpusOf("gpl", 3, 1), false, 0);
  ASSERT_TRUE(version.ok() && state.Register(HolderOf("a"), seconds(3)).ok());
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("writing: No space left on device")
                                : absl::OkStatus();
  });
  const auto refused = state.Publish(CorpusOf("gpl", 4, 2), true, 0).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.ToString(), HasSubstr("No space left"));
  EXPECT_EQ(state.Drop("gpl", "").status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*state.Get("gpl", ""))->version, *version);
  EXPECT_TRUE(state.Register(HolderOf("b"), seconds(3)).ok()) << "epochs were put by";
  files.set_hook({});
  EXPECT_TRUE(state.Publish(CorpusOf("gpl", 4, 2), true, 0).ok());
  ASSERT_EQ((*Start().Get("gpl", ""))->chunks.size(), 4u);
}

TEST_F(DurableDirectoryTest, AFullDiskKeepsNoMemberOut) {
  uint64_t epoch = Start().Register(HolderOf("a"), seconds(3))->epoch.value;
  directory.reset();
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("no space") : absl::OkStatus();
  });
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    options.first_epoch += 1'000'000;  // the wall clock advances
    DirectoryState& state = Start();
    for (int i = 0; i < 3; ++i) {
      const auto grant = state.Register(HolderOf("a"), seconds(3));
      ASSERT_TRUE(grant.ok()) << grant.status();
      ASSERT_GT(grant->epoch.value, epoch);
      epoch = grant->epoch.value;
    }
  }
  // With room again, what was given counts.
  files.set_hook({});
  ASSERT_TRUE(Start().Register(HolderOf("a"), seconds(3)).ok());
  options.first_epoch = 0;
  EXPECT_GT(Start().Register(HolderOf("a"), seconds(3))->epoch.value, epoch);
}

// A reader that saw a change which a crash then takes back would keep what never was.
TEST_F(DurableDirectoryTest, HidesAChangeUntilItIsDurable) {
  DirectoryState& state = Start();
  ASSERT_TRUE(state.Publish(CorpusOf("gpl", 1, 1), false, 0).ok());
  const auto watcher = state.Watch("");
  while ((*(*watcher)->Next(clock.Now()))->kind != DirectoryEvent::Kind::kSynced) continue;
  absl::Notification reached, go;
  files.set_hook([&](Call call, const std::string&) {
    if (call != Call::kSync || reached.HasBeenNotified()) return absl::OkStatus();
    reached.Notify();
    go.WaitForNotification();
    return absl::OkStatus();
  });
  absl::StatusOr<uint64_t> published;
  std::thread publisher([&] { published = state.Publish(CorpusOf("gpl", 2, 2), true, 0); });
  reached.WaitForNotification();
  EXPECT_EQ((*state.Get("gpl", ""))->chunks.size(), 1u) << "and no read waits";
  EXPECT_FALSE((*(*watcher)->Next(clock.Now())).has_value());
  go.Notify();
  publisher.join();
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ((*state.Get("gpl", ""))->version, *published);
  EXPECT_EQ((*(*watcher)->Next(clock.Now()))->corpus->version, *published);
}

TEST_F(DurableDirectoryTest, ReportsAChangeThatIsNotDurableInTime) {
  DirectoryState& state = Start();
  absl::Notification reached, go;
  files.set_hook([&](Call call, const std::string&) {
    if (call != Call::kSync || reached.HasBeenNotified()) return absl::OkStatus();
    reached.Notify();
    go.WaitForNotification();
    return absl::OkStatus();
  });
  absl::StatusOr<uint64_t> published;
  std::thread publisher([&] {
    published = state.Publish(CorpusOf("gpl", 2, 2), false, 0, nullptr, clock.Now() + seconds(1));
  });
  reached.WaitForNotification();
  clock.Advance(seconds(1));
  publisher.join();
  EXPECT_EQ(published.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(published.status().ToString(), HasSubstr("look whether it was made"));
  // Another change of the same corpus waits its turn.
  EXPECT_EQ(state.Drop("gpl", "", nullptr, clock.Now()).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(state.Publish(CorpusOf("gpl", 3, 3), false, 0, nullptr, clock.Now()).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Listed(), IsEmpty());
  go.Notify();
  EXPECT_TRUE(state.Drop("gpl", "").ok()) << "it waits for the change, which was made";
}

// Threads publish, replace and drop; each change is acknowledged or refused, and a restart has
// exactly what was acknowledged. The disk fails now and then.
TEST_F(DurableDirectoryTest, ManyCallersAtOnce) {
  log.log_bytes_min = 10'000;
  DirectoryState& state = Start();
  std::atomic<int> calls{0};
  files.set_hook([&](Call call, const std::string&) {
    const bool fails = (call == Call::kWrite || call == Call::kSync) && ++calls % 17 == 0;
    return fails ? absl::UnavailableError("EIO") : absl::OkStatus();
  });
  constexpr int kThreads = 8, kChanges = 150;
  std::vector<uint64_t> versions(kThreads);  // one a thread; 0 if its corpus is dropped
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = absl::StrCat("c", t);
      for (uint32_t i = 0; i < kChanges; ++i) {
        if (i % 10 == 9) {
          const absl::Status dropped = state.Drop(name, "").status();
          if (dropped.ok()) versions[t] = 0;
          refused += absl::IsUnavailable(dropped);
        } else {
          const auto published = state.Publish(CorpusOf(name, 1 + i % 5, i), true, 0);
          if (published.ok()) versions[t] = *published;
          refused += absl::IsUnavailable(published.status());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(refused.load(), 10);
  EXPECT_LT(directory->log()->stats().sync_count, directory->log()->stats().change_count);
  files.set_hook({});
  std::vector<std::string> due;
  for (int t = 0; t < kThreads; ++t)
    if (versions[t] != 0) due.push_back(absl::StrCat("c", t, " ", versions[t]));
  EXPECT_EQ(Listed(), due);
  Start();
  EXPECT_EQ(Listed(), due);
}

TEST_F(DurableDirectoryTest, AFolderThatContradictsItselfIsRefused) {
  ASSERT_TRUE(Start().Publish(CorpusOf("gpl", 1, 1), false, 0).ok());
  directory.reset();
  {
    const auto folder =
        LogFolder::Open(&files, log.path, [](const DirectoryChange&) { return absl::OkStatus(); });
    DirectoryChange drop;
    drop.kind = ChangeKind::kDrop;
    drop.name = "never";
    drop.version = 7;
    std::string record;
    AppendRecord(drop, record);
    ASSERT_TRUE((*folder)->Append(record).ok());
  }
  const auto refused = DurableDirectory::Open(options, log).status();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_THAT(refused.ToString(), testing::AllOf(HasSubstr("directory.path: "), HasSubstr("log.1"),
                                                 HasSubstr("\"never\"")));
}

TEST_F(DurableDirectoryTest, WithoutAFolderItForgets) {
  log.path.clear();
  ASSERT_TRUE(Start().Publish(CorpusOf("gpl", 1, 1), false, 0).ok());
  EXPECT_EQ(directory->log(), nullptr);
  Start();
  EXPECT_THAT(Listed(), IsEmpty());
  EXPECT_EQ(directory->found().path, "");
}

}  // namespace
}  // namespace ckv
