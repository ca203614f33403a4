// Goal: leases end in the order of names, and a watcher reads each member and corpus once, then
// their changes.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/directory/tables/lease_table.h"
#include "server/directory/tables/placed_corpora.h"
#include "server/directory/tables/returning_holders.h"
#include "server/directory/tables/watches.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = DirectoryEvent::Kind;

Lease LeaseOf(const std::string& name, uint64_t id, int64_t expires,
              MemberRole role = MemberRole::kHolder) {
  Lease lease;
  lease.id = id;
  lease.member.id = {name};
  lease.member.role = role;
  lease.ttl = Duration(10);
  lease.expires = {expires};
  return lease;
}

std::shared_ptr<const Corpus> CorpusOn(const std::string& name,
                                       const std::vector<std::vector<HolderId>>& holders,
                                       uint32_t seed = 1, const std::string& tenant = "") {
  Corpus corpus = test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(6, 2), seed)
                      .Publish(name, tenant, holders);
  return std::make_shared<const Corpus>(std::move(corpus));
}

TEST(LeaseTable, LeasesExpireInTheOrderOfNames) {
  LeaseTable leases;
  leases.Add(LeaseOf("b", 7, 20));
  leases.Add(LeaseOf("a", 9, 20));
  leases.Add(LeaseOf("c", 8, 30));
  EXPECT_THAT(leases.Expired({19}), IsEmpty());
  EXPECT_THAT(leases.Expired({20}), ElementsAre(9, 7));
  leases.NoteEnded(leases.Find(9)->member, {20}, /*ran_out=*/true);
  leases.Remove(9);
  leases.Remove(7);
  EXPECT_EQ(leases.Find(9), nullptr);
  EXPECT_FALSE(leases.Has({"a"}));
  LeaseTable::Renew({25}, nullptr, *leases.Find(8));
  EXPECT_THAT(leases.Expired({34}), IsEmpty());
  EXPECT_THAT(leases.Expired({35}), ElementsAre(8));
  EXPECT_EQ(leases.Ended({21}).size(), 1u);
  leases.Add(LeaseOf("a", 10, 90));
  EXPECT_THAT(leases.Ended({21}), IsEmpty()) << "it is back";
}

TEST(LeaseTable, OnlyAHolderReports) {
  LeaseTable leases;
  leases.Add(LeaseOf("a", 1, 20));
  leases.Add(LeaseOf("r", 2, 20, MemberRole::kRequester));
  EXPECT_EQ((*leases.FindHolder(1, kIdsPerCallMax))->member.id.name, "a");
  EXPECT_EQ(leases.FindHolder(1, kIdsPerCallMax + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(leases.FindHolder(2, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(leases.FindHolder(3, 0).status().code(), absl::StatusCode::kNotFound);
  leases.NotePlacedChange({"a"});
  leases.NotePlacedChange({"unknown"});
  leases.NotePlacedChange();
  EXPECT_EQ(leases.Find(1)->placed_change_count, 2u);
  EXPECT_EQ(leases.Find(2)->placed_change_count, 1u);
}

TEST(PlacedCorpora, AReplacedVersionLeavesItsOrphans) {
  const CorpusRebuild reports(100, 100);
  PlacedCorpora corpora(100);
  const auto first = CorpusOn("gpl", {{{"h0"}}, {{"h1"}}});
  const auto second = CorpusOn("gpl", {{{"h0"}}});
  const CorpusKey key("", "gpl");
  std::vector<ChunkPlacement> orphans;
  corpora.Replace(key, first, reports, &orphans);
  EXPECT_THAT(orphans, IsEmpty());
  EXPECT_EQ(corpora.CountPlacedOn({"h1"}), 3u);
  EXPECT_EQ(corpora.CountReferences(first->chunks[1].id, "h1"), 1u);
  EXPECT_EQ(corpora.CountReferences(first->chunks[1].id, "h0"), 0u);
  corpora.Replace(key, second, reports, &orphans);
  EXPECT_EQ(orphans.size(), 3u) << "the chunks that are on h0 now";
  for (const ChunkPlacement& orphan : orphans)
    EXPECT_THAT(orphan.holders(), ElementsAre(HolderId{"h1"}));
  EXPECT_EQ(corpora.PlacedOn({"h1"}), nullptr);
  EXPECT_EQ(corpora.chunk_count(), 6u);
  corpora.Replace(key, nullptr, reports, &orphans);
  EXPECT_EQ(orphans.size(), 6u);
  EXPECT_EQ(corpora.chunk_count(), 0u);
  EXPECT_EQ(corpora.Find(key), nullptr);
  EXPECT_THAT(corpora.by_holder(), IsEmpty());
}

TEST(PlacedCorpora, AnAnnouncementEndsWithTheLastPlaceOfItsChunk) {
  const CorpusRebuild reports(100, 100);
  PlacedCorpora corpora(100);
  const auto corpus = CorpusOn("gpl", {{{"h0"}}});
  corpora.Replace({"", "gpl"}, corpus, reports, nullptr);
  const ChunkId id = corpus->chunks[2].id;
  CorporaByKey changed;
  EXPECT_EQ(corpora.Announce(7, {"h9"}, "", id, changed), ReplicaTable::Outcome::kAdded);
  EXPECT_EQ(changed.size(), 1u);
  EXPECT_EQ(corpora.CountReferences(id, "h9"), 1u);
  std::vector<ChunkPlacement> orphans;
  corpora.Replace({"", "gpl"}, nullptr, reports, &orphans);
  EXPECT_THAT(orphans[2].leased(), ElementsAre(HolderId{"h9"}));
  EXPECT_EQ(corpora.replicas().replica_count(), 0u);
  EXPECT_THAT(corpora.Withdraw(7, std::nullopt, {&id, 1}), IsEmpty());
}

TEST(ReturningHolders, AHolderIsMissingUntilItRegistersOrNoCorpusNamesIt) {
  const CorpusRebuild reports(100, 100);
  PlacedCorpora corpora(100);
  corpora.Replace({"", "gpl"}, CorpusOn("gpl", {{{"h0"}}, {{"h1"}}}), reports, nullptr);
  ReturningHolders returning;
  returning.Start(corpora, {100});
  EXPECT_THAT(returning.List(corpora), ElementsAre(HolderId{"h0"}, HolderId{"h1"}));
  EXPECT_EQ(returning.Check({99}).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(returning.Check({100}).ok());
  returning.NoteRegistered({"h0"});
  returning.NoteReporting({"h0"});
  EXPECT_TRUE(returning.IsReporting({"h0"}));
  EXPECT_THAT(returning.List(corpora), ElementsAre(HolderId{"h0"}, HolderId{"h1"}));
  returning.EndReporting({"h0"});
  EXPECT_THAT(returning.List(corpora), ElementsAre(HolderId{"h1"}));
  corpora.Replace({"", "gpl"}, nullptr, reports, nullptr);
  EXPECT_THAT(returning.List(corpora), IsEmpty());
  EXPECT_TRUE(returning.Check({99}).ok());
}

TEST(Watches, AChangeIsQueuedOnlyIfWhatItChangesIsRead) {
  LeaseTable leases;
  leases.Add(LeaseOf("a", 1, 20));
  CorporaByKey corpora;
  const auto corpus = CorpusOn("gpl", {{{"a"}}});
  const auto foreign = CorpusOn("gpl", {{{"a"}}}, 2, "red");
  corpora[KeyOf(*corpus)] = corpus;
  corpora[KeyOf(*foreign)] = foreign;
  Watches watches;
  WatchPosition position("blue", /*all_tenants=*/false);
  watches.Add(&position);
  watches.Notify({.kind = Kind::kMemberGone, .member = leases.Find(1)->member, .corpus = nullptr});
  const auto next = [&] { return position.Next(leases, corpora); };
  EXPECT_EQ(next()->kind, Kind::kMemberUp) << "what is not read yet is read as it is";
  watches.Notify({.kind = Kind::kMemberGone, .member = leases.Find(1)->member, .corpus = nullptr});
  watches.ReportReplicasChanged(corpora);
  EXPECT_EQ(next()->corpus, corpus);
  watches.ReportReplicasChanged(corpora);
  EXPECT_EQ(next()->kind, Kind::kSynced);
  EXPECT_TRUE(position.IsReady());
  EXPECT_EQ(next()->kind, Kind::kMemberGone);
  EXPECT_EQ(next()->kind, Kind::kReplicasChanged);
  EXPECT_FALSE(position.IsReady());
  EXPECT_FALSE(next().has_value());
  EXPECT_EQ(watches.change_count(), 6u);
  for (size_t i = 0; i <= WatchPosition::kBacklogMax; ++i) {
    EXPECT_FALSE(position.IsBehind());
    watches.Notify({.kind = Kind::kCorpusDropped, .member = {}, .corpus = corpus});
  }
  EXPECT_TRUE(position.IsBehind());
  EXPECT_TRUE(position.IsReady());
  EXPECT_FALSE(next().has_value());
  watches.Remove(&position);
  EXPECT_EQ(watches.count(), 0u);
}

}  // namespace
}  // namespace ckv
