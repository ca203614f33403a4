// Goal: every change is decoded as it was encoded; bytes that are no records are refused and cost
// no memory; a build refuses what a later one wrote.

#include "server/directory/log/change.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/directory/log/log_file.h"

namespace ckv {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

std::vector<DirectoryChange> EveryKind() {
  std::vector<DirectoryChange> changes;
  for (uint32_t seed = 0; seed < 6; ++seed)
    changes.push_back(test::PublishOf(test::RandomCorpus("gpl", 7 + seed, seed * 17, seed)));
  changes.push_back(test::DropOf(*changes[3].corpus));
  changes.push_back(test::EpochsTo(1'700'000'000'000));
  DirectoryChange change;
  change.kind = ChangeKind::kFounded;
  change.folder_id = 0x0123456789abcdef;
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kContinues;
  change.log_number = 3;
  change.log_bytes = 4711;
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kSnapshotBegin;
  change.folder_id = 5;
  change.version = 6;
  change.epoch_max = 7;
  change.corpus_count = 8;
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kSnapshotEnd;
  change.corpus_count = 8;
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kGap;
  change.gap = {9, 10};
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kForget;
  change.tenant = "acme";
  change.name = "gpl";
  change.number = 11;
  change.folder_id = 12;
  change.version = 13;
  change.removed_version = 14;
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kTenantKey;
  change.tenant = "acme";
  for (uint8_t i = 0; i < 32; ++i) change.key.bytes[i] = i;
  changes.push_back(change);
  change = {};
  change.kind = ChangeKind::kDrain;
  change.holder = "h1";
  changes.push_back(change);
  change.drains = true;
  changes.push_back(change);
  Corpus printed = *changes[3].corpus;
  for (size_t i = 1; i < printed.chunks.size(); i += 2)
    printed.chunks[i].set_token_hash({i + 1, i * i});
  printed.name = VersionNameOf(printed.name, 7);
  printed.policy = {.ttl_ms = 15, .quota_bytes = 16, .kept_version_count = 3, .expires_at_ms = 18};
  changes.push_back(test::PublishOf(std::make_shared<const Corpus>(std::move(printed))));
  return changes;
}

absl::StatusOr<std::vector<DirectoryChange>> Read(std::string_view payload) {
  std::vector<DirectoryChange> changes;
  absl::Status status = ReadRecords(payload, [&](DirectoryChange change) {
    changes.push_back(std::move(change));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return changes;
}

void ExpectSame(const DirectoryChange& a, const DirectoryChange& b) {
  EXPECT_EQ(a.kind, b.kind);
  ASSERT_EQ(a.corpus == nullptr, b.corpus == nullptr);
  if (a.corpus != nullptr) {
    EXPECT_EQ(*a.corpus, *b.corpus);
  }
  EXPECT_EQ(a.tenant, b.tenant);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(a.number, b.number);
  EXPECT_EQ(a.removed_version, b.removed_version);
  EXPECT_EQ(a.gap, b.gap);
  EXPECT_EQ(a.epoch_max, b.epoch_max);
  EXPECT_EQ(a.folder_id, b.folder_id);
  EXPECT_EQ(a.log_number, b.log_number);
  EXPECT_EQ(a.log_bytes, b.log_bytes);
  EXPECT_EQ(a.corpus_count, b.corpus_count);
  EXPECT_EQ(a.key, b.key);
}

TEST(Change, RoundTripsItsBytes) {
  std::string payload;
  const std::vector<DirectoryChange> changes = EveryKind();
  for (const DirectoryChange& change : changes) AppendRecord(change, payload);
  const auto read = Read(payload);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), changes.size());
  for (size_t i = 0; i < changes.size(); ++i) ExpectSame(changes[i], (*read)[i]);
}

TEST(Change, AChunkOfAChainTakes38Bytes) {
  const auto bytes_of = [](const Corpus& corpus) {
    return test::RecordOf(test::PublishOf(std::make_shared<const Corpus>(corpus))).size();
  };
  Corpus corpus = *test::RandomCorpus("gpl", 1, 1001, 2);
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_holders({{"holder-1"}});
  Corpus one = corpus;
  one.chunks.resize(1);
  EXPECT_EQ(bytes_of(corpus) - bytes_of(one), 1000u * 38);
}

// A frame whose sector is zero counts as unfinished: no payload may look so.
TEST(Change, NoPayloadHas512ZerosInARow) {
  Corpus corpus = *test::RandomCorpus("gpl", 0, 64, 1);
  corpus.chunks.resize(64);
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    ChunkPlacement& chunk = corpus.chunks[i];
    chunk.id = {};
    chunk.id.bytes[i % 2 == 0 ? 0 : 31] = static_cast<uint8_t>(i + 1);
    ChunkId parent;
    parent.bytes[31 - i % 2 * 31] = 1;
    chunk.set_parent(parent);
    chunk.token_count = 0;
    chunk.position = uint64_t{1} << 32;
    chunk.mutable_holders().assign(8, {});
    for (size_t h = 0; h < 8; ++h)
      chunk.mutable_holders()[h].name = std::string(1, static_cast<char>('a' + (h + i) % 16));
  }
  const std::string record =
      test::RecordOf(test::PublishOf(std::make_shared<const Corpus>(corpus)));
  ASSERT_TRUE(Read(record).ok()) << Read(record).status();
  EXPECT_EQ(record.find(std::string(256, '\0')), record.npos);
}

TEST(Change, RefusesACutChange) {
  for (const DirectoryChange& change : EveryKind()) {
    const std::string record = test::RecordOf(change);
    for (size_t bytes = 1; bytes < record.size(); ++bytes)
      EXPECT_EQ(Read(record.substr(0, bytes)).status().code(), StatusCode::kDataLoss) << bytes;
    // A body that is longer or shorter than its fields.
    std::string longer = record + '\0', shorter = record.substr(0, record.size() - 1);
    ++longer[4], --shorter[4];
    if (static_cast<uint8_t>(record[4]) == 0 || static_cast<uint8_t>(record[4]) == 255) continue;
    EXPECT_EQ(Read(longer).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(Read(shorter).status().code(), StatusCode::kDataLoss);
  }
}

TEST(Change, ALaterBuildsRecordsAreRefused) {
  std::string record = test::RecordOf(test::EpochsTo(7));
  record[1] = 2;
  EXPECT_EQ(Read(record).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Read(record).status().ToString(), HasSubstr("later version of ckv"));
  record[1] = 1;
  record[0] = static_cast<char>(ChangeKind::kDrain) + 1;
  EXPECT_EQ(Read(record).status().code(), StatusCode::kFailedPrecondition);
  record[0] = 0;
  EXPECT_EQ(Read(record).status().code(), StatusCode::kDataLoss);
}

TEST(Change, AnUnknownPrintIsRefused) {
  for (const DirectoryChange& change : EveryKind()) {
    const std::string record = test::RecordOf(change);
    EXPECT_EQ(record[0], static_cast<char>(change.kind));
    EXPECT_EQ(record[1], 1);
  }
  std::string no_token_hash = test::RecordOf(EveryKind().back());
  ASSERT_EQ(no_token_hash.back(), '\xff');  // the last chunk of 51 has none
  no_token_hash.back() = 2;
  EXPECT_EQ(Read(no_token_hash).status().code(), StatusCode::kDataLoss);
}

TEST(Change, CountsAreCheckedBeforeTheyAreBelieved) {
  const Corpus corpus = *test::RandomCorpus("g", 1, 2, 0);
  const std::string record =
      test::RecordOf(test::PublishOf(std::make_shared<const Corpus>(corpus)));
  // Every four bytes as the largest count: none is allocated by, and none is taken.
  for (size_t at = 8; at + 4 <= record.size(); ++at) {
    std::string bad = record;
    bad.replace(at, 4, 4, '\xff');
    const auto read = Read(bad);
    EXPECT_TRUE(!read.ok() || *read->front().corpus != corpus) << at;
  }
}

}  // namespace
}  // namespace ckv
