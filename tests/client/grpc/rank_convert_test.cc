// Goal: loads, queries and rankings survive the wire, and sizes from outside are refused before
// anything is copied. Method: messages with every field set, there and back; then malformed ones.

#include "client/grpc/rank_convert.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using testing::HasSubstr;

LoadNotice FullNotice() {
  LoadNotice notice;
  notice.name = "engine-1";
  notice.address = "10.0.0.1:8000";
  notice.host = "gpu1";
  notice.ttl = std::chrono::milliseconds(1500);
  notice.load = {1, 2, 3, 4, 5, 6};
  notice.cached = {0x0102030405060708, 9};
  notice.leaves = true;
  return notice;
}

TEST(RankConvert, RoundTripsANotice) {
  const v1::ReportLoadRequest message = ToProto(FullNotice());
  const auto back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(), message.SerializeAsString());
  EXPECT_EQ(back->load, FullNotice().load);
  EXPECT_EQ(back->cached, FullNotice().cached);
  LoadNotice unset = FullNotice();
  unset.cached.reset();
  EXPECT_EQ(FromProto(ToProto(unset))->cached, std::nullopt) << "unset is not empty";
  unset.cached.emplace();
  EXPECT_TRUE(FromProto(ToProto(unset))->cached.has_value());
  const LoadLease lease = {std::chrono::milliseconds(7), true, 8};
  EXPECT_EQ(ToProto(FromProto(ToProto(lease))).SerializeAsString(),
            ToProto(lease).SerializeAsString());
}

TEST(RankConvert, RefusesDigestsThatAreNoList) {
  v1::ReportLoadRequest message = ToProto(FullNotice());
  message.mutable_cached()->set_prefixes("1234567");
  EXPECT_THAT(std::string(FromProto(message).status().message()), HasSubstr("cached: 7 bytes"));
  message.mutable_cached()->set_prefixes(std::string(8 * (kDigestChunkCountMax + 1), 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(message).status()));
}

TEST(RankConvert, TakesAQueryWithinItsLimits) {
  v1::RankRequest message;
  message.set_tokens(100);
  message.set_cache_bytes(1000);
  message.set_reserve_bytes(10);
  v1::RankRequest::Chunk& chunk = *message.add_chunks();
  chunk.set_id(std::string("\x08\x07\x06\x05\x04\x03\x02\x01", 8) + std::string(24, 'x'));
  chunk.set_token_count(60);
  message.set_prefix_only(true);
  message.add_from_hosts("p");
  message.add_in_flight(2);
  message.set_with_tolerance(true);
  const auto query = FromProto(message);
  ASSERT_TRUE(query.ok()) << query.status();
  EXPECT_EQ(query->request.reserve_bytes, 10);
  ASSERT_EQ(query->chunks.size(), 1u);
  EXPECT_EQ(query->chunks[0].prefix, 0x0102030405060708u);
  EXPECT_EQ(query->chunks[0].tokens, 60);
  EXPECT_TRUE(query->prefix_only && query->with_tolerance);
  EXPECT_TRUE(ValidateQuery(*query).ok());

  const auto refusal = [](const v1::RankRequest& request) {
    const auto refused = FromProto(request);
    const absl::Status status = refused.ok() ? ValidateQuery(*refused) : refused.status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  v1::RankRequest bad = message;
  bad.set_tokens(0);
  EXPECT_THAT(refusal(bad), HasSubstr("tokens: 0"));
  bad.set_tokens(std::numeric_limits<double>::infinity());
  EXPECT_THAT(refusal(bad), HasSubstr("tokens: inf"));
  bad = message;
  bad.set_in_flight(0, -1);
  EXPECT_THAT(refusal(bad), HasSubstr("in_flight"));
  bad = message;
  for (int i = 0; i < 16; ++i) bad.add_in_flight(1);
  EXPECT_THAT(refusal(bad), HasSubstr("in_flight: 17"));
  bad = message;
  for (int i = 0; i < 4; ++i) bad.add_from_hosts("q");
  EXPECT_THAT(refusal(bad), HasSubstr("from_hosts: 5"));
  bad = message;
  bad.set_from_hosts(0, std::string(300, 'x'));
  EXPECT_THAT(refusal(bad), HasSubstr("from_hosts: a name of 300"));
  bad = message;
  bad.mutable_chunks(0)->set_id("short");
  EXPECT_FALSE(refusal(bad).empty());
  bad = message;
  bad.mutable_chunks(0)->set_token_count(1u << 30);
  EXPECT_THAT(refusal(bad), HasSubstr("chunks.token_count"));
  bad = message;
  while (bad.chunks_size() <= static_cast<int>(kRankChunkCountMax))
    *bad.add_chunks() = message.chunks(0);
  EXPECT_THAT(refusal(bad), HasSubstr("chunks: 4097"));
}

TEST(RankConvert, RoundTripsARanking) {
  FleetRanking ranking;
  ranking.requesters.resize(2);
  RankedRequester& requester = ranking.requesters[1];
  requester.name = "engine-1";
  requester.address = "10.0.0.1:8000";
  requester.host = "gpu1";
  requester.load = {1, 2, 3, 4, 5, 6};
  requester.load_age = std::chrono::milliseconds(20);
  requester.matched_tokens = 7;
  requester.has_path = true;
  requester.from_host = "p";
  requester.tier_name = "rack";
  requester.path = {1, 8, 9, 0.5, 2};
  requester.cost = {true, 10, 11, 12, 13, 14, 15};
  ranking.best = 1;
  ranking.tolerated_error = std::numeric_limits<double>::infinity();
  ranking.request = {.tokens = 20, .cache_bytes = 21};
  const v1::RankReply message = ToProto(ranking);
  EXPECT_EQ(message.tokens(), 20);
  EXPECT_EQ(message.cache_bytes(), 21);
  const auto back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(), message.SerializeAsString());
  EXPECT_FALSE(back->requesters[0].has_path);
  EXPECT_EQ(back->requesters[1].cost.total_us, 15);
  v1::RankReply bad = message;
  bad.set_best(2);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(bad).status()));
}

}  // namespace
}  // namespace ckv
