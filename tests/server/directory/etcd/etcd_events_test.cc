// Goal: what a writer puts into etcd, seen as events, is the changes that were written.
// Method: events as etcd sends them, made by hand, without etcd.

#include "server/directory/etcd/etcd_events.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

std::string Record(const DirectoryChange& change) {
  std::string record;
  AppendRecord(change, record);
  return record;
}

struct EtcdEventsTest : testing::Test {
  static EtcdEvent Put(int64_t revision, std::string key, std::string value, int64_t created = 0) {
    return {.is_delete = false,
            .pair = {.key = std::move(key),
                     .value = std::move(value),
                     .create_revision = created == 0 ? revision : created,
                     .mod_revision = revision}};
  }
  static EtcdEvent Delete(int64_t revision, std::string key) {
    return {.is_delete = true,
            .pair = {.key = std::move(key), .value = "", .mod_revision = revision}};
  }
  DirectoryChange Publication(const std::string& name, uint64_t version) const {
    Corpus corpus =
        test::MakeTestCorpus(test::TestGeometry(), {2, 2}, 1).Publish(name, "", {{{"h"}}});
    corpus.version = version;
    DirectoryChange change;
    change.corpus = std::make_shared<const Corpus>(std::move(corpus));
    return change;
  }
  absl::Status Apply(const std::vector<EtcdEvent>& events) {
    return ApplyEtcdEvents(
        layout, events,
        [&](uint64_t version, uint32_t count, int64_t revision) -> absl::StatusOr<std::string> {
          read_parts.push_back({version, count, static_cast<uint64_t>(revision)});
          return parts;
        },
        [&](const DirectoryChange& change) { seen.push_back(change); }, index);
  }

  const EtcdLayout layout{"/ckv/"};
  EtcdIndex index;
  std::vector<DirectoryChange> seen;
  std::vector<std::vector<uint64_t>> read_parts;
  std::string parts;
};

TEST_F(EtcdEventsTest, APublicationInOneValueAndInParts) {
  const DirectoryChange change = Publication("a", 7);
  const std::string record = Record(change);
  ASSERT_TRUE(
      Apply({Put(3, layout.Corpus("", "a"),
                 EtcdCorpusValue{.version = 7, .part_count = 0, .record = record}.Encode())})
          .ok());
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(*seen[0].corpus, *change.corpus);
  EXPECT_EQ(index.corpus_count, 1u);
  EXPECT_EQ(index.revision, 3);

  parts = record;
  ASSERT_TRUE(Apply({Put(4, layout.Part(8, 0), "half"), Put(5, layout.Part(8, 1), "half")}).ok());
  EXPECT_EQ(index.stray_parts, std::set<uint64_t>{8}) << "no corpus has them yet";
  ASSERT_TRUE(Apply({Put(6, layout.Corpus("", "a"),
                         EtcdCorpusValue{.version = 8, .part_count = 2, .record = ""}.Encode(), 3)})
                  .ok());
  EXPECT_EQ(read_parts, (std::vector<std::vector<uint64_t>>{{8, 2, 6}}));
  EXPECT_TRUE(index.stray_parts.empty());
  EXPECT_EQ(index.parted.at(layout.Corpus("", "a")), 8u);
  EXPECT_EQ(index.corpus_count, 1u);
}

TEST_F(EtcdEventsTest, ADropIsATombstoneWithTheCorpussKey) {
  DirectoryChange drop;
  drop.kind = ChangeKind::kForget;
  drop.name = "a";
  drop.version = 7;
  drop.number = 9;
  index.corpus_count = 1;
  ASSERT_TRUE(
      Apply({Delete(5, layout.Corpus("", "a")), Put(5, layout.Drop(9), Record(drop))}).ok());
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0].removed_version, 0u);
  EXPECT_EQ(index.drops, std::set<uint64_t>{9});
  EXPECT_EQ(index.corpus_count, 0u);
  // A report of a drop that removes nothing here.
  ASSERT_TRUE(Apply({Put(6, layout.Drop(10), Record(drop))}).ok());
  EXPECT_EQ(seen[1].removed_version, 0u);
  ASSERT_TRUE(Apply({Delete(7, layout.Drop(9))}).ok());
  EXPECT_FALSE(index.drops.contains(9));
}

TEST_F(EtcdEventsTest, MembersAndNumbers) {
  DirectoryChange member;
  member.kind = ChangeKind::kMember;
  member.member = {.id = {"h0"},
                   .role = MemberRole::kHolder,
                   .control_address = "127.0.0.1:1",
                   .epoch = {5},
                   .kernel_target = KernelTargetId::kAvx2};
  member.lease_ttl = std::chrono::seconds(9);
  ASSERT_TRUE(Apply({Put(2, layout.Member("h0"), Record(member)),
                     Put(3, layout.Number(), EncodeEtcdNumber(44)), Put(3, layout.Sequence(), "s"),
                     Put(4, layout.Folder(), EncodeEtcdNumber(77)), Delete(5, layout.Member("h0")),
                     Put(6, layout.Leader(), "me"), Delete(7, layout.Leader()),
                     Put(8, "/ckv/later", "unknown")})
                  .ok());
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].member, member.member);
  EXPECT_EQ(seen[0].lease_ttl, member.lease_ttl);
  EXPECT_EQ(seen[1].version, 44u);
  EXPECT_EQ(seen[2].kind, ChangeKind::kMemberGone);
  EXPECT_EQ(seen[2].member.id.name, "h0");
  EXPECT_EQ(index.number, 44u);
  EXPECT_EQ(index.sequence, "s");
  EXPECT_EQ(index.folder_id, 77u);
  EXPECT_EQ(index.revision, 8);
}

TEST_F(EtcdEventsTest, AnUnexpectedDeletionCausesANewReading) {
  for (const std::string& key : {layout.Corpus("", "a"), layout.Sequence(), layout.Tenant("t")})
    EXPECT_TRUE(absl::IsOutOfRange(Apply({Delete(2, key)}))) << key;
  const absl::Status bad = Apply({Put(3, layout.Tenant("t"), "no record")});
  EXPECT_TRUE(absl::IsDataLoss(bad)) << bad;
  EXPECT_NE(bad.message().find("/ckv/tenant/t"), std::string::npos) << bad;
}

}  // namespace
}  // namespace ckv
