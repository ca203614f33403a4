// Goal: a change is settled only when it is durable, many with one sync, in the order of the log;
// the log stays short whatever is done to it; a disk that fails refuses changes and nothing else.
// Method: a sink that keeps what was settled; a file system whose syncs a test holds or fails.

#include "server/directory/log/change_log.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/directory/log/log_file.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using absl::StatusCode;
using Call = FaultFileSystem::Call;

constexpr Duration kLong = std::chrono::seconds(20);

// The corpora by name, as changes make them.
class Sink final : public ChangeSink {
 public:
  void Settle(const DirectoryChange& change, const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    statuses_.push_back(status);
    if (status.ok()) Apply(change);
  }
  DirectoryImage Image() override {
    absl::MutexLock lock(&mu_);
    DirectoryImage image;
    for (const auto& [name, corpus] : corpora_) image.corpora.push_back(corpus);
    image.version = version_;
    return image;
  }
  absl::Status Replay(const DirectoryChange& change) {
    absl::MutexLock lock(&mu_);
    Apply(change);
    return absl::OkStatus();
  }
  std::vector<absl::Status> AwaitSettled(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto settled = [&] {
      mu_.AssertHeld();
      return statuses_.size() >= count;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&settled), absl::FromChrono(kLong)));
    return statuses_;
  }
  size_t settled_count() {
    absl::MutexLock lock(&mu_);
    return statuses_.size();
  }
  std::map<std::string, uint64_t> versions() {
    absl::MutexLock lock(&mu_);
    std::map<std::string, uint64_t> versions;
    for (const auto& [name, corpus] : corpora_) versions[name] = corpus->version;
    return versions;
  }

 private:
  void Apply(const DirectoryChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (change.kind == ChangeKind::kPublish) {
      corpora_[change.corpus->name] = change.corpus;
      version_ = std::max(version_, change.corpus->version);
    }
    if (change.kind == ChangeKind::kDrop) corpora_.erase(change.name);
  }
  absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<const Corpus>> corpora_ ABSL_GUARDED_BY(mu_);
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mu_);
};

// Holds every call of a kind until it is opened. Made before the log, whose thread may be in it to
// the log's end.
class Gate {
 public:
  explicit Gate(Call call) : call_(call) {}
  absl::Status Pass(Call call) {
    absl::MutexLock lock(&mu_);
    if (call != call_) return absl::OkStatus();
    ++waiting_;
    mu_.Await(absl::Condition(&open_));
    return status_;
  }
  void AwaitCaller() {
    absl::MutexLock lock(&mu_);
    const auto waits = [this] {
      mu_.AssertHeld();
      return waiting_ > 0;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&waits), absl::FromChrono(kLong)));
  }
  void Open(absl::Status status = absl::OkStatus()) {
    absl::MutexLock lock(&mu_);
    open_ = true;
    status_ = std::move(status);
  }

 private:
  const Call call_;
  absl::Mutex mu_;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

struct ChangeLogTest : testing::Test {
  ChangeLogTest() {
    static int count = 0;
    options.path = test::TempPath(absl::StrCat("changes", count++));
    options.files = &files;
    options.clock = &clock;
  }
  std::unique_ptr<ChangeLog> Open(Sink& sink) {
    auto log = ChangeLog::Open(options,
                               [&](const DirectoryChange& change) { return sink.Replay(change); });
    EXPECT_TRUE(log.ok()) << log.status();
    (*log)->Start(&sink);
    return *std::move(log);
  }
  static std::shared_ptr<const DirectoryChange> Publish(const std::string& name, uint64_t version,
                                                        size_t chunks = 1) {
    return std::make_shared<const DirectoryChange>(
        test::PublishOf(test::RandomCorpus(name, version, chunks, static_cast<uint32_t>(version))));
  }

  ManualClock clock;
  FaultFileSystem files;
  ChangeLogOptions options;
};

TEST_F(ChangeLogTest, ManyChangesShareASync) {
  Sink sink;
  Gate gate(Call::kSync);
  auto log = Open(sink);
  files.set_hook([&](Call call, const std::string&) { return gate.Pass(call); });
  ASSERT_TRUE(log->Submit(Publish("first", 1)).ok());
  gate.AwaitCaller();
  for (uint64_t i = 0; i < 100; ++i)
    ASSERT_TRUE(log->Submit(Publish(absl::StrCat("c", i), 2 + i)).ok());
  EXPECT_TRUE(sink.versions().empty()) << "nothing is told before it is durable";
  gate.Open();
  for (const absl::Status& status : sink.AwaitSettled(101)) EXPECT_TRUE(status.ok()) << status;
  const ChangeLog::Stats stats = log->stats();
  EXPECT_EQ(stats.change_count, 101u);
  EXPECT_EQ(stats.sync_count, 2u);
  EXPECT_EQ(stats.failure_count, 0u);
  log.reset();
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions(), sink.versions());
}

TEST_F(ChangeLogTest, RefusesAFailedChangeAndTakesTheNext) {
  Sink sink;
  Gate gate(Call::kWrite);
  auto log = Open(sink);
  files.set_hook([&](Call call, const std::string&) { return gate.Pass(call); });
  ASSERT_TRUE(log->Submit(Publish("a", 1)).ok());
  gate.AwaitCaller();
  gate.Open(absl::ResourceExhaustedError("no space"));
  auto settled = sink.AwaitSettled(1);
  EXPECT_EQ(settled[0].code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(log->stats().last_error.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(log->stats().failure_count, 1u);
  gate.Open();
  ASSERT_TRUE(log->Submit(Publish("b", 2)).ok());
  EXPECT_TRUE(sink.AwaitSettled(2)[1].ok());
  EXPECT_TRUE(log->stats().last_error.ok());
  log.reset();
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions(), (std::map<std::string, uint64_t>{{"b", 2}}));
}

// A process continues to write to files that have no name any more, and no restart finds them.
TEST_F(ChangeLogTest, ChangesAreRefusedWhileTheFolderIsGone) {
  Sink sink;
  auto log = Open(sink);
  ASSERT_TRUE(log->Submit(Publish("a", 1)).ok());
  ASSERT_TRUE(sink.AwaitSettled(1)[0].ok());
  log->Look();
  EXPECT_TRUE(log->stats().last_error.ok()) << log->stats().last_error;
  const std::string away = options.path + ".away";
  std::filesystem::rename(options.path, away);
  log->Look();
  const absl::Status error = log->stats().last_error;
  EXPECT_EQ(error.code(), StatusCode::kUnavailable) << "before anybody changes a corpus";
  EXPECT_THAT(error.ToString(), testing::HasSubstr(options.path + " is not the one"));
  ASSERT_TRUE(log->Submit(Publish("b", 2)).ok());
  EXPECT_EQ(sink.AwaitSettled(2)[1], error);
  // Another directory's folder is there meanwhile: it gets nothing.
  std::filesystem::create_directory(options.path);
  log->Look();
  ASSERT_TRUE(log->Submit(Publish("c", 3)).ok());
  EXPECT_FALSE(sink.AwaitSettled(3)[2].ok());
  EXPECT_TRUE(std::filesystem::is_empty(options.path));
  std::filesystem::remove(options.path);
  std::filesystem::rename(away, options.path);
  log->Look();
  EXPECT_TRUE(log->stats().last_error.ok()) << "before anybody changes a corpus";
  ASSERT_TRUE(log->Submit(Publish("d", 4)).ok());
  EXPECT_TRUE(sink.AwaitSettled(4)[3].ok());
  log.reset();
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions(), (std::map<std::string, uint64_t>{{"a", 1}, {"d", 4}}));
}

TEST_F(ChangeLogTest, ALookThatFindsTheFolderForgivesNoOtherError) {
  Sink sink;
  auto log = Open(sink);
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("no space") : absl::OkStatus();
  });
  ASSERT_TRUE(log->Submit(Publish("a", 1)).ok());
  EXPECT_FALSE(sink.AwaitSettled(1)[0].ok());
  log->Look();
  EXPECT_EQ(log->stats().last_error.code(), StatusCode::kResourceExhausted);
}

TEST_F(ChangeLogTest, TooManyThatWaitAreRefused) {
  Sink sink;
  Gate gate(Call::kSync);
  auto log = Open(sink);
  files.set_hook([&](Call call, const std::string&) { return gate.Pass(call); });
  ASSERT_TRUE(log->Submit(Publish("first", 1)).ok());
  gate.AwaitCaller();
  const auto change = Publish("c", 2);
  for (size_t i = 0; i < ChangeLog::kQueuedCountMax; ++i) ASSERT_TRUE(log->Submit(change).ok());
  EXPECT_EQ(log->Submit(change).code(), StatusCode::kResourceExhausted);
  gate.Open();
  sink.AwaitSettled(1 + ChangeLog::kQueuedCountMax);
  EXPECT_TRUE(log->Submit(change).ok());
}

TEST_F(ChangeLogTest, TheLogStaysShort) {
  options.log_bytes_min = 20'000;
  Sink sink;
  auto log = Open(sink);
  // A state of 10 corpora of 2 KB, changed over and over: 100 times its size.
  uint64_t longest = 0;
  for (uint64_t version = 1; version <= 1000; ++version) {
    ASSERT_TRUE(log->Submit(Publish(absl::StrCat("c", version % 10), version, 40)).ok());
    sink.AwaitSettled(version);
    longest = std::max(longest, log->stats().log_bytes);
  }
  const ChangeLog::Stats stats = log->stats();
  EXPECT_GT(stats.snapshot_count, 10u);
  EXPECT_EQ(stats.snapshot_failure_count, 0u);
  const uint64_t due = std::max(options.log_bytes_min, stats.snapshot_bytes);
  EXPECT_LE(longest, ChangeLog::kLogFactorMax * due + 5'000) << "and the change that made it so";
  log.reset();
  uint64_t on_disk = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options.path))
    on_disk += entry.file_size();
  EXPECT_LE(on_disk, (1 + ChangeLog::kLogFactorMax) * due + 5'000);
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions(), sink.versions());
}

TEST_F(ChangeLogTest, ASnapshotThatFailsIsTriedAgainLater) {
  options.log_bytes_min = 5'000;
  Sink sink;
  auto log = Open(sink);
  files.set_hook([](Call call, const std::string& path) {
    return call == Call::kCreate && path.find("snapshot") != path.npos
               ? absl::ResourceExhaustedError("no space")
               : absl::OkStatus();
  });
  uint64_t version = 0;
  const auto publish = [&] {
    ++version;
    ASSERT_TRUE(log->Submit(Publish(absl::StrCat("c", version % 10), version, 40)).ok());
    EXPECT_TRUE(sink.AwaitSettled(version).back().ok()) << "changes go on";
  };
  while (log->stats().snapshot_failure_count == 0) publish();
  for (int i = 0; i < 10; ++i) publish();
  EXPECT_EQ(log->stats().snapshot_failure_count, 1u) << "not at every change";
  files.set_hook({});
  clock.Advance(ChangeLog::kSnapshotPause);
  while (log->stats().snapshot_count == 0) publish();
  log.reset();
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions(), sink.versions());
}

// A disk that takes a snapshot's bytes too slowly stops changes, after a time that is bounded.
TEST_F(ChangeLogTest, ASnapshotThatHangsIsNotWaitedForInVain) {
  options.log_bytes_min = 5'000;
  Sink sink;
  Gate gate(Call::kCreate);
  auto log = Open(sink);
  files.set_hook([&](Call call, const std::string& path) {
    return path.find("snapshot") != path.npos ? gate.Pass(call) : absl::OkStatus();
  });
  uint64_t version = 0;
  const auto submit = [&] {
    ++version;
    EXPECT_TRUE(log->Submit(Publish(absl::StrCat("c", version % 10), version, 40)).ok());
  };
  while (log->stats().log_bytes <= ChangeLog::kLogFactorMax * options.log_bytes_min) {
    submit();
    ASSERT_TRUE(sink.AwaitSettled(version).back().ok());
  }
  gate.AwaitCaller();
  const auto due = sink.versions();
  submit();
  const Instant give_up = Clock::Real()->Now() + kLong;
  while (sink.settled_count() < version && Clock::Real()->Now() < give_up)
    clock.Advance(std::chrono::seconds(1));
  EXPECT_EQ(sink.AwaitSettled(version).back().code(), StatusCode::kResourceExhausted);
  submit();
  const absl::Status refused = sink.AwaitSettled(version).back();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << "at once";
  EXPECT_NE(refused.message().find("did not take a snapshot within 30 s"), std::string::npos);
  EXPECT_EQ(sink.versions(), due);
  gate.Open();
  while (log->stats().snapshot_count == 0) continue;
  submit();
  EXPECT_TRUE(sink.AwaitSettled(version).back().ok());
  log.reset();
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions(), sink.versions());
}

TEST_F(ChangeLogTest, AcceptedChangesAreDurableAtTheEnd) {
  Sink sink;
  auto log = Open(sink);
  for (uint64_t i = 0; i < 300; ++i)
    ASSERT_TRUE(log->Submit(Publish(absl::StrCat("c", i), 1 + i)).ok());
  log.reset();
  EXPECT_EQ(sink.AwaitSettled(300).size(), 300u);
  Sink again;
  Open(again);
  EXPECT_EQ(again.versions().size(), 300u);
}

}  // namespace
}  // namespace ckv
