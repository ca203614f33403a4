// Goal: what a leader writes to etcd is read back as it was, and what it may not write is refused.
// Method: a real etcd on loopback.

#include "server/directory/etcd/etcd_state.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using End = EtcdWriter::End;

class EtcdStateTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (test::EtcdCluster::IsInstalled()) cluster = new test::EtcdCluster(1);
  }
  static void TearDownTestSuite() { delete cluster; }

  EtcdStateTest() {
    static int count = 0;
    layout_ = EtcdLayout("/test-" + std::to_string(++count) + "/");
  }
  void SetUp() override {
    if (cluster == nullptr) GTEST_SKIP() << "no etcd; to run it: deploy/install-packages.sh tests";
    client_ = std::make_unique<EtcdClient>(cluster->endpoints(), Clock::Real());
  }

  Instant Soon() { return Clock::Real()->Now() + std::chrono::seconds(20); }

  // Becomes the leader, and returns the fence.
  int64_t Lead() {
    EtcdTransaction claim;
    claim.writes = {
        {.kind = EtcdWrite::Kind::kDelete, .keys = EtcdKeys::One(layout_.Leader()), .value = ""}};
    EXPECT_TRUE(client_->Commit(claim, Soon()).ok());
    claim.writes = {{.keys = EtcdKeys::One(layout_.Leader()), .value = "here"}};
    const auto claimed = client_->Commit(claim, Soon());
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return claimed->revision;
  }

  // The changes in etcd.
  std::vector<DirectoryChange> Changes(EtcdIndex* index = nullptr) {
    std::vector<DirectoryChange> changes;
    const auto read = ReadEtcdState(*client_, layout_, Soon(), [&](DirectoryChange change) {
      changes.push_back(std::move(change));
      return absl::OkStatus();
    });
    EXPECT_TRUE(read.ok()) << read.status();
    if (index != nullptr && read.ok()) *index = *read;
    return changes;
  }
  std::unique_ptr<EtcdWriter> NewWriter(int64_t fence) {
    EtcdIndex index;
    Changes(&index);
    auto writer = std::make_unique<EtcdWriter>(client_.get(), layout_, fence, index);
    absl::Status status;
    EXPECT_EQ(writer->Begin(/*folder_id=*/77, Soon(), status), End::kApplied) << status;
    return writer;
  }
  End Write(EtcdWriter& writer, const DirectoryChange& change) {
    EXPECT_TRUE(writer.Add(change));
    absl::Status status;
    return writer.Flush(Soon(), status);
  }

  static DirectoryChange PublishOf(const std::string& name, uint64_t version, size_t chunk_count) {
    Corpus corpus =
        test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), 1)
            .Publish(name, "blue", {{HolderId{"a"}}});
    corpus.version = version;
    DirectoryChange change;
    change.corpus = std::make_shared<const Corpus>(std::move(corpus));
    return change;
  }
  static DirectoryChange DropOf(const std::string& name, uint64_t version, uint64_t number) {
    DirectoryChange change;
    change.kind = ChangeKind::kDrop;
    change.tenant = "blue";
    change.name = name;
    change.version = version;
    change.number = number;
    return change;
  }

  static test::EtcdCluster* cluster;
  EtcdLayout layout_{"/"};
  std::unique_ptr<EtcdClient> client_;
};

test::EtcdCluster* EtcdStateTest::cluster = nullptr;

TEST_F(EtcdStateTest, ReadsBackEachKindOfChange) {
  const auto writer = NewWriter(Lead());
  ASSERT_EQ(Write(*writer, PublishOf("gpl", 5, 3)), End::kApplied);
  ASSERT_EQ(Write(*writer, PublishOf("gone", 6, 3)), End::kApplied);
  ASSERT_EQ(Write(*writer, DropOf("gone", 6, 7)), End::kApplied);
  DirectoryChange epochs;
  epochs.kind = ChangeKind::kEpochs;
  epochs.epoch_max = 4096;
  DirectoryChange gap;
  gap.kind = ChangeKind::kGap;
  gap.gap = {.after = 7, .until = 99};
  DirectoryChange key;
  key.kind = ChangeKind::kTenantKey;
  key.tenant = "blue";
  key.key.bytes[0] = 3;
  for (const DirectoryChange& change : {epochs, gap, key})
    ASSERT_EQ(Write(*writer, change), End::kApplied);

  EtcdIndex index;
  const std::vector<DirectoryChange> changes = Changes(&index);
  ASSERT_EQ(changes.size(), 5u);
  EXPECT_EQ(changes[0].kind, ChangeKind::kSnapshotBegin);
  EXPECT_EQ(changes[0].epoch_max, 4096u);
  EXPECT_EQ(changes[0].folder_id, 77u);
  EXPECT_EQ(changes[1].gap, gap.gap);
  EXPECT_EQ(changes[2].kind, ChangeKind::kForget);
  EXPECT_EQ(changes[2].folder_id, 77u);
  EXPECT_EQ(changes[2].number, 7u);
  EXPECT_EQ(changes[3].key, key.key);
  EXPECT_EQ(*changes[4].corpus, *PublishOf("gpl", 5, 3).corpus);
  EXPECT_EQ(index.corpus_count, 1u);
  EXPECT_EQ(index.number, 99u);
}

TEST_F(EtcdStateTest, ALongCorpusIsInPartsThatAreDeletedWithIt) {
  const int64_t fence = Lead();
  auto writer = NewWriter(fence);
  const DirectoryChange first = PublishOf("long", 5, 40'000);
  ASSERT_EQ(Write(*writer, first), End::kApplied);
  EtcdIndex index;
  EXPECT_EQ(*Changes(&index).back().corpus, *first.corpus);
  EXPECT_EQ(index.parted.size(), 1u);
  const DirectoryChange second = PublishOf("long", 8, 40'000);
  ASSERT_EQ(Write(*writer, second), End::kApplied);
  EXPECT_EQ(Changes(&index).back().corpus->version, 8u);
  EXPECT_TRUE(index.stray_parts.empty());
  ASSERT_EQ(Write(*writer, DropOf("long", 8, 9)), End::kApplied);
  Changes(&index);
  EXPECT_TRUE(index.parted.empty());
  EXPECT_TRUE(index.stray_parts.empty());
  EXPECT_EQ(index.corpus_count, 0u);
}

TEST_F(EtcdStateTest, AnEarlierLeaderWritesNothing) {
  const auto earlier = NewWriter(Lead());
  ASSERT_EQ(Write(*earlier, PublishOf("kept", 5, 1)), End::kApplied);
  const auto writer = NewWriter(Lead());
  EXPECT_EQ(Write(*earlier, PublishOf("late", 6, 1)), End::kLost);
  EXPECT_EQ(Write(*writer, PublishOf("new", 6, 1)), End::kApplied);
  EtcdIndex index;
  Changes(&index);
  EXPECT_EQ(index.corpus_count, 2u);
}

// A process that leads twice with one fence, or a transaction that arrives late.
TEST_F(EtcdStateTest, ATransactionOutOfSequenceIsRefused) {
  const int64_t fence = Lead();
  const auto one = NewWriter(fence);
  EtcdIndex index;
  Changes(&index);
  EtcdWriter other(client_.get(), layout_, fence, index);
  ASSERT_EQ(Write(*one, PublishOf("a", 5, 1)), End::kApplied);
  EXPECT_EQ(Write(other, PublishOf("b", 6, 1)), End::kLost);
}

// As many transactions later, the second writer of a fence is where the first one was.
TEST_F(EtcdStateTest, ALateTransactionOfAnEarlierWriterOfTheFenceIsRefused) {
  const int64_t fence = Lead();
  const auto one = NewWriter(fence);
  ASSERT_EQ(Write(*one, PublishOf("a", 5, 1)), End::kApplied);
  const auto second = NewWriter(fence);
  ASSERT_EQ(Write(*second, PublishOf("b", 6, 1)), End::kApplied);
  EXPECT_EQ(Write(*one, PublishOf("late", 7, 1)), End::kLost);
  EXPECT_EQ(Write(*second, PublishOf("c", 8, 1)), End::kApplied);
  EtcdIndex index;
  Changes(&index);
  EXPECT_EQ(index.corpus_count, 3u);
}

TEST_F(EtcdStateTest, ABatchIsOneTransaction) {
  const auto writer = NewWriter(Lead());
  for (uint64_t i = 0; i < 10; ++i)
    ASSERT_TRUE(writer->Add(PublishOf("c" + std::to_string(i), 10 + i, 1)));
  EXPECT_FALSE(writer->Add(PublishOf("c3", 30, 1))) << "the same key again";
  absl::Status status;
  const int64_t before = writer->index().revision;
  ASSERT_EQ(writer->Flush(Soon(), status), End::kApplied) << status;
  EXPECT_EQ(writer->index().revision, before + 1);
  EtcdIndex index;
  Changes(&index);
  EXPECT_EQ(index.corpus_count, 10u);
  EXPECT_EQ(index.number, 19u);
}

TEST_F(EtcdStateTest, AMissingPartIsAnError) {
  const auto writer = NewWriter(Lead());
  ASSERT_EQ(Write(*writer, PublishOf("long", 5, 40'000)), End::kApplied);
  EtcdTransaction damage;
  damage.writes = {
      {.kind = EtcdWrite::Kind::kDelete, .keys = EtcdKeys::One(layout_.Part(5, 1)), .value = ""}};
  ASSERT_TRUE(client_->Commit(damage, Soon()).ok());
  const auto read = ReadEtcdState(*client_, layout_, Soon(),
                                  [](const DirectoryChange&) { return absl::OkStatus(); });
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << read.status();
}

TEST_F(EtcdStateTest, TheHistoryIsDroppedOnceMuchWasWritten) {
  const auto writer = NewWriter(Lead());
  const auto has_history = [&](int64_t revision) {
    const auto read = client_->ReadKeys(EtcdKeys::One(layout_.Number()), revision, Soon(),
                                        [](const EtcdPair&) { return absl::OkStatus(); });
    return !absl::IsOutOfRange(read.status());
  };
  ASSERT_EQ(Write(*writer, PublishOf("gpl", 5, 3)), End::kApplied);
  const int64_t early = writer->index().revision;
  writer->Compact(Soon());
  EXPECT_TRUE(has_history(early)) << "little was written";
  uint64_t version = 5;
  Corpus corpus = *PublishOf("gpl", version, 40'000).corpus;
  for (size_t bytes = 0; bytes < EtcdWriter::kCompactBytes; bytes += 40'000 * 37) {
    corpus.version = ++version;
    DirectoryChange change;
    change.corpus = std::make_shared<const Corpus>(corpus);
    ASSERT_EQ(Write(*writer, change), End::kApplied);
  }
  EXPECT_TRUE(has_history(early));
  writer->Compact(Soon());
  EXPECT_FALSE(has_history(early));
  ASSERT_EQ(Write(*writer, DropOf("gpl", version, version + 1)), End::kApplied);
}

}  // namespace
}  // namespace ckv
