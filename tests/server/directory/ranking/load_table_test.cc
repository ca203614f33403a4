// Goal: a ranking has exactly the requesters under leases, with the terms of their own reports, and
// the tokens that their digests match. Method: a table with a clock that a test moves; the matched
// tokens are compared with a plain count over the digests, on random ones.

#include "server/directory/ranking/load_table.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

struct LoadTableTest : testing::Test {
  static LoadNotice From(const std::string& name, double queued = 0) {
    LoadNotice notice;
    notice.name = name;
    notice.address = "10.0.0.1:8000";
    notice.ttl = milliseconds(3000);
    notice.load = {.free_bytes = 1e9,
                   .queued = queued,
                   .batch = 4,
                   .batch_max = 4,
                   .iteration_base_us = 10'000,
                   .iteration_request_us = 100};
    return notice;
  }
  static FleetQuery Of(double tokens) {
    FleetQuery query;
    query.request = {.tokens = tokens, .cache_bytes = tokens * 1000, .reserve_bytes = 0};
    return query;
  }
  LoadLease Report(const LoadNotice& notice) {
    const auto lease = table.Report(notice);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *lease : LoadLease{};
  }
  FleetRanking Rank(const FleetQuery& query, std::span<const PathsFrom> from = {}) {
    FleetRanking ranking;
    table.Rank(query, from, ranking);
    return ranking;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const RankedRequester& requester : Rank(Of(1)).requesters) names.push_back(requester.name);
    return names;
  }

  ManualClock clock;
  LoadTable table{{.clock = &clock}};
};

TEST_F(LoadTableTest, HasTheTermsOfEachReport) {
  Report(From("b", 3));
  Report(From("a", 1));
  clock.Advance(milliseconds(20));
  const FleetRanking ranking = Rank(Of(100));
  ASSERT_EQ(ranking.requesters.size(), 2u);
  const RankedRequester& a = ranking.requesters[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.host, "10.0.0.1") << "that of the address";
  EXPECT_EQ(a.load, From("a", 1).load);
  EXPECT_EQ(a.load_age, milliseconds(20));
  // Without an oracle the transfer costs nothing. The full batch makes each queued request wait.
  EXPECT_FALSE(a.has_path);
  EXPECT_EQ(a.cost.transfer_us, 0);
  EXPECT_DOUBLE_EQ(a.cost.queue_us, 10'400);
  EXPECT_DOUBLE_EQ(a.cost.decode_us, 10'500);
  EXPECT_DOUBLE_EQ(ranking.requesters[1].cost.queue_us, 3 * 10'400);
  EXPECT_EQ(ranking.best, size_t{0});
}

TEST_F(LoadTableTest, ATieIsOfTheLowerIndexAndNoRoomIsNotChosen) {
  Report(From("b"));
  Report(From("c"));
  LoadNotice full = From("a");
  full.load.free_bytes = 99'999;  // of 100 tokens with 1000 bytes each
  Report(full);
  const FleetRanking ranking = Rank(Of(100));
  EXPECT_FALSE(ranking.requesters[0].cost.has_room);
  EXPECT_EQ(ranking.best, size_t{1}) << "b before c, which costs the same";
  full.load.free_bytes = 100'000;
  Report(full);
  EXPECT_EQ(Rank(Of(100)).best, size_t{0});
}

// An engine that has not decoded yet has no iteration time. It is not the fastest for that.
TEST_F(LoadTableTest, AnUnknownIterationTimeIsTheMeanOfTheOthers) {
  LoadNotice slow = From("a"), fresh = From("b"), fast = From("c");
  slow.load.iteration_base_us = 20'000;
  fresh.load.iteration_base_us = fresh.load.iteration_request_us = 0;
  for (const LoadNotice* one : {&slow, &fresh, &fast}) Report(*one);
  const FleetRanking ranking = Rank(Of(100));
  EXPECT_EQ(ranking.best, size_t{2});
  EXPECT_DOUBLE_EQ(ranking.requesters[1].cost.decode_us, 15'500);
  EXPECT_EQ(ranking.requesters[1].load.iteration_base_us, 0) << "as reported";
}

TEST_F(LoadTableTest, ARequesterIsThereUntilItsLeaseEnds) {
  Report(From("a"));
  clock.Advance(milliseconds(1500));
  Report(From("b"));
  clock.Advance(milliseconds(1499));
  EXPECT_EQ(Names(), (std::vector<std::string>{"a", "b"}));
  clock.Advance(milliseconds(1));
  EXPECT_EQ(Names(), std::vector<std::string>{"b"});
  Report(From("b"));
  clock.Advance(milliseconds(2999));
  EXPECT_EQ(Names(), std::vector<std::string>{"b"}) << "renewed";
  LoadNotice leaves = From("b");
  leaves.leaves = true;
  leaves.address = "10.0.0.2:8000";
  Report(leaves);
  EXPECT_EQ(table.requester_count(), 1u) << "another address must not end it";
  leaves.address = From("b").address;
  Report(leaves);
  EXPECT_EQ(table.requester_count(), 0u);
  EXPECT_EQ(Rank(Of(1)).best, std::nullopt);
}

TEST_F(LoadTableTest, ANameIsOfOneAddress) {
  Report(From("a"));
  LoadNotice other = From("a");
  other.address = "10.0.0.2:8000";
  const auto refused = table.Report(other);
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("for 3000 ms more"));
  clock.Advance(milliseconds(3000));
  Report(other);
  EXPECT_EQ(Rank(Of(1)).requesters[0].address, "10.0.0.2:8000");
}

TEST_F(LoadTableTest, RefusesMalformedReports) {
  const auto refusal = [&](const LoadNotice& notice) {
    const absl::Status status = table.Report(notice).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  LoadNotice notice = From("a");
  notice.load.queued = -1;
  EXPECT_THAT(refusal(notice), HasSubstr("load.queued: -1"));
  notice.load.queued = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal(notice), HasSubstr("load.queued: nan"));
  notice = From("a");
  notice.address = "nowhere";
  EXPECT_THAT(refusal(notice), HasSubstr("address"));
  notice = From("a b");
  EXPECT_THAT(refusal(notice), HasSubstr("name"));
  notice = From("");
  EXPECT_THAT(refusal(notice), HasSubstr("name"));
  notice = From("a");
  notice.cached.emplace(kDigestChunkCountMax + 1);
  EXPECT_THAT(refusal(notice), HasSubstr("cached: 4097 chunks"));
  EXPECT_EQ(table.requester_count(), 0u);
}

TEST_F(LoadTableTest, ADigestStaysUntilItIsReplacedAndEndsWithTheLease) {
  EXPECT_TRUE(Report(From("a")).digest_wanted);
  LoadNotice notice = From("a");
  notice.cached = {7, 5, 5};
  const LoadLease lease = Report(notice);
  EXPECT_FALSE(lease.digest_wanted);
  EXPECT_EQ(lease.digest_count, 2u);
  FleetQuery query = Of(30);
  query.chunks = {{5, 10}, {6, 10}, {7, 10}};
  const auto matched = [&] { return Rank(query).requesters[0].matched_tokens; };
  EXPECT_EQ(matched(), 20);
  query.prefix_only = true;
  EXPECT_EQ(matched(), 10);
  EXPECT_FALSE(Report(From("a")).digest_wanted) << "unset: the earlier one stays";
  EXPECT_EQ(matched(), 10);
  notice.cached = {6, 7};
  Report(notice);
  EXPECT_EQ(matched(), 0) << "the first chunk is gone";
  query.prefix_only = false;
  EXPECT_EQ(matched(), 20);
  clock.Advance(milliseconds(3000));
  EXPECT_TRUE(Report(From("a")).digest_wanted);
  EXPECT_EQ(matched(), 0);
  EXPECT_EQ(table.chunk_count(), 0u);
}

TEST_F(LoadTableTest, RequestersAndChunksHaveLimits) {
  for (size_t i = 0; i < LoadTable::kRequesterCountMax; ++i) {
    LoadNotice notice = From(absl::StrFormat("r%d", i));
    notice.cached.emplace();
    for (size_t chunk = 0; chunk < 256; ++chunk) notice.cached->push_back(i * 256 + chunk);
    const LoadLease lease = Report(notice);
    EXPECT_EQ(lease.digest_count, i < LoadTable::kChunkCountMax / 256 ? 256u : 0u) << i;
  }
  EXPECT_EQ(table.chunk_count(), LoadTable::kChunkCountMax);
  const auto refused = table.Report(From("more"));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  LoadNotice leaves = From("r0");
  leaves.leaves = true;
  Report(leaves);
  Report(From("more"));
  EXPECT_EQ(Rank(Of(1)).requesters.size(), LoadTable::kRequesterCountMax);
}

// As many requesters as fill several words of a set, on places that were freed and taken again.
TEST_F(LoadTableTest, MatchesAsAPlainCountDoes) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    LoadTable random_table({.clock = &clock});
    std::map<std::string, std::vector<ChunkPrefix>> digests;
    for (int step = 0; step < 300; ++step) {
      LoadNotice notice = From(absl::StrFormat("r%d", rng() % 150));
      notice.leaves = rng() % 4 == 0;
      notice.cached.emplace();
      for (ChunkPrefix prefix = 0; prefix < 12; ++prefix)
        if (rng() % 4 != 0) notice.cached->push_back(prefix);
      std::shuffle(notice.cached->begin(), notice.cached->end(), rng);
      ASSERT_TRUE(random_table.Report(notice).ok());
      digests.erase(notice.name);
      if (!notice.leaves) digests[notice.name] = *notice.cached;
    }
    FleetQuery query = Of(1000);
    for (int i = 0; i < 6; ++i) query.chunks.push_back({rng() % 14, double(1 + rng() % 100)});
    for (const bool prefix_only : {false, true}) {
      query.prefix_only = prefix_only;
      FleetRanking ranking;
      random_table.Rank(query, {}, ranking);
      ASSERT_EQ(ranking.requesters.size(), digests.size());
      for (const RankedRequester& requester : ranking.requesters) {
        const std::vector<ChunkPrefix>& digest = digests.at(requester.name);
        double expected = 0;
        for (const RankChunk& chunk : query.chunks) {
          const bool has = std::count(digest.begin(), digest.end(), chunk.prefix) > 0;
          if (!has && prefix_only) break;
          if (has) expected += chunk.tokens;
        }
        EXPECT_EQ(requester.matched_tokens, expected) << requester.name;
      }
    }
  }
}

std::shared_ptr<NetworkSnapshot> TwoTiers(Instant taken) {
  auto snapshot = std::make_shared<NetworkSnapshot>();
  snapshot->tiers = {{"rack", 12.5e9, 3, 0.5}, {"far", 2.5e9, 15, 0}};
  snapshot->tier_of_host = {{"near", 0}, {"away", 1}};
  snapshot->taken = taken;
  return snapshot;
}

TEST_F(LoadTableTest, ChargesTheFastestPathWithTheCallersOwnTransfers) {
  LoadNotice notice = From("a");
  notice.host = "near";
  Report(notice);
  notice = From("b");
  notice.host = "away";
  Report(notice);
  Report(From("c"));
  auto other = TwoTiers(clock.Now());
  other->tier_of_host = {{"away", 0}};
  const PathsFrom from[] = {{"p", TwoTiers(clock.Now()), std::chrono::seconds(60)},
                            {"q", nullptr, {}},
                            {"r", other, std::chrono::seconds(60)}};
  FleetQuery query = Of(1000);  // 1 MB
  query.in_flight = {1};
  FleetRanking ranking = Rank(query, std::span(from).first(1));
  const RankedRequester* requester = ranking.requesters.data();
  EXPECT_EQ(requester[0].from_host, "p");
  EXPECT_EQ(requester[0].tier_name, "rack");
  EXPECT_DOUBLE_EQ(requester[0].cost.bandwidth_bytes_per_s, 12.5e9 * 0.5 / 2);
  EXPECT_DOUBLE_EQ(requester[0].cost.transfer_us, 1e6 / (12.5e9 * 0.5 / 2) * 1e6 + 3);
  EXPECT_EQ(requester[1].path.tier, 1u);
  EXPECT_DOUBLE_EQ(requester[1].cost.transfer_us, 1e6 / 2.5e9 * 1e6 + 15);
  EXPECT_FALSE(requester[2].has_path);
  ranking = Rank(query, from);
  EXPECT_EQ(ranking.requesters[0].from_host, "p");
  EXPECT_EQ(ranking.requesters[1].from_host, "r") << "3.1 GB/s left there, 2.5 of p";
  // Old congestion does not count.
  clock.Advance(std::chrono::milliseconds(2000));
  const PathsFrom old[] = {{"p", from[0].snapshot, milliseconds(1)}};
  EXPECT_EQ(Rank(query, old).requesters[0].path.congestion, 0);
}

TEST_F(LoadTableTest, ToleranceIsComputedOnRequest) {
  LoadNotice notice = From("a");
  notice.host = "near";
  Report(notice);
  notice = From("b");
  notice.host = "away";
  Report(notice);
  const PathsFrom from[] = {{"p", TwoTiers(clock.Now()), std::chrono::seconds(60)}};
  FleetQuery query = Of(1000);
  EXPECT_EQ(Rank(query, from).tolerated_error, std::nullopt);
  query.with_tolerance = true;
  const FleetRanking ranking = Rank(query, from);
  ASSERT_TRUE(ranking.tolerated_error);
  EXPECT_GT(*ranking.tolerated_error, 0);
  EXPECT_LT(*ranking.tolerated_error, 0.5);
}

}  // namespace
}  // namespace ckv
