// Goal: the directory ranks the requesters that report to it, over gRPC: with a corpus's chunks and
// bytes, the holders' hosts and the operator's network. Method: a directory and holders in this
// process, and reports as engines send them; and a service that follows.

#include <fstream>
#include <string>

#include "client/grpc/rank_convert.h"
#include "server/services/directory_service.h"
#include "tests/server/services/services_fixture.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Call;
using testing::HasSubstr;

class RankServiceTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    // The holders of these tests are on 127.0.0.1.
    const std::string path = test::TempPath("network.json");
    std::ofstream(path) << R"({
      "version": 1,
      "tiers": [{"name": "rack", "bandwidth_GBps": 10, "latency_us": 3},
                {"name": "far", "bandwidth_GBps": 1, "latency_us": 15, "congestion": 0.5}],
      "hosts": {"127.0.0.1": ["r1"], "near": ["r1"], "away": ["r2"]}
    })";
    Config config = test::ConfigOf({"directory"}, "d");
    config.oracle_file = path;
    StartDirectory(config);
  }
  static LoadNotice From(const std::string& name, const std::string& host) {
    LoadNotice notice;
    notice.name = name;
    notice.address = "10.0.0.1:8000";
    notice.host = host;
    notice.ttl = std::chrono::seconds(60);
    notice.load = {.free_bytes = 1e9, .batch = 1, .batch_max = 8, .iteration_base_us = 100};
    return notice;
  }
  grpc::Status Report(const v1::ReportLoadRequest& request, v1::ReportLoadReply* reply) {
    Call call;
    return directory_stub_->ReportLoad(call.get(), request, reply);
  }
  void Report(const LoadNotice& notice) {
    v1::ReportLoadReply reply;
    const grpc::Status status = Report(ToProto(notice), &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.lease_ttl_ms(), 60'000u);
  }
  grpc::Status Rank(const v1::RankRequest& request, v1::RankReply* reply) {
    Call call;
    return directory_stub_->Rank(call.get(), request, reply);
  }
  v1::RankReply Ranked(const v1::RankRequest& request) {
    v1::RankReply reply;
    const grpc::Status status = Rank(request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  // Ranks until the directory's oracle has read the paths from the holders' host.
  v1::RankReply RankedWithPaths(const v1::RankRequest& request) {
    const Instant until = test::Soon();
    v1::RankReply reply;
    do {
      reply = Ranked(request);
    } while (!reply.requesters(0).has_path() && Clock::Real()->Now() < until);
    return reply;
  }
};

TEST_F(RankServiceTest, RanksForACorpus) {
  StartHolders(1);
  const test::TestCorpus corpus = test::MakeTestCorpus(test::TestGeometry(), {40, 60}, 1);
  Load("docs", corpus);
  Report(From("a", "near"));
  LoadNotice notice = From("b", "away");
  notice.cached = {PrefixOf(corpus.chunks[0].info.id)};
  Report(notice);
  v1::RankRequest request;
  request.set_corpus("docs");
  request.set_with_tolerance(true);
  const v1::RankReply reply = RankedWithPaths(request);
  const double token_bytes = static_cast<double>(corpus.geometry.token_bytes());
  EXPECT_EQ(reply.tokens(), 100);
  EXPECT_EQ(reply.cache_bytes(), 100 * token_bytes);
  ASSERT_EQ(reply.requesters_size(), 2);
  const v1::RankedRequester& a = reply.requesters(0);
  EXPECT_EQ(a.name(), "a");
  EXPECT_EQ(a.path().from_host(), "127.0.0.1") << "the holder's";
  EXPECT_EQ(a.path().tier_name(), "rack");
  EXPECT_DOUBLE_EQ(a.transfer_us(), 100 * token_bytes / 10e9 * 1e6 + 3);
  EXPECT_EQ(a.decode_us(), 100);
  const v1::RankedRequester& b = reply.requesters(1);
  EXPECT_EQ(b.matched_tokens(), 40);
  EXPECT_DOUBLE_EQ(b.missing_bytes(), 60 * token_bytes);
  EXPECT_EQ(b.path().congestion(), 0.5);
  EXPECT_DOUBLE_EQ(b.transfer_us(), 60 * token_bytes / 0.5e9 * 1e6 + 15);
  EXPECT_EQ(reply.best(), 0u);
  EXPECT_TRUE(reply.has_tolerated_error());

  // The same by the chunks' ids, and with transfers of the caller in the rack.
  v1::RankRequest by_ids;
  for (const test::TestChunk& chunk : corpus.chunks) {
    v1::RankRequest::Chunk& message = *by_ids.add_chunks();
    message.set_id(std::string(chunk.info.id.AsBytes()));
    message.set_token_count(static_cast<uint32_t>(chunk.info.token_ids.size()));
  }
  by_ids.add_in_flight(1);
  const v1::RankReply by_id = RankedWithPaths(by_ids);
  EXPECT_EQ(by_id.tokens(), 100);
  EXPECT_EQ(by_id.requesters(1).matched_tokens(), 40);
  EXPECT_DOUBLE_EQ(by_id.requesters(0).transfer_us(), 2 * 100 * token_bytes / 10e9 * 1e6 + 3);
}

TEST_F(RankServiceTest, RefusesWhatItCannotRank) {
  v1::RankReply reply;
  v1::RankRequest request;
  EXPECT_EQ(Rank(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_corpus("none");
  EXPECT_EQ(Rank(request, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::RankRequest::Chunk& chunk = *request.add_chunks();
  chunk.set_id(std::string(32, 'x'));
  chunk.set_token_count(5);
  EXPECT_THAT(Rank(request, &reply).error_message(), HasSubstr("name one of them"));
  request.clear_corpus();
  EXPECT_THAT(Rank(request, &reply).error_message(), HasSubstr("cache_bytes: 0"));
  request.set_cache_bytes(1000);
  EXPECT_TRUE(Rank(request, &reply).ok());
  EXPECT_FALSE(reply.has_best()) << "no requester reports";
  v1::ReportLoadRequest report = ToProto(From("a", "near"));
  report.mutable_load()->set_batch(-1);
  v1::ReportLoadReply lease;
  EXPECT_THAT(Report(report, &lease).error_message(), HasSubstr("load.batch"));
}

// A follower has no reports. Its error makes a caller go to the leader (directory_caller.h).
TEST(RankServiceFollower, RefusesBothCalls) {
  ManualClock clock;
  DirectoryState state({.clock = &clock});
  state.changes().StartFollowing();
  ServiceGate gate(4);
  DirectoryServiceImpl service(&state, &gate, &clock);
  grpc::ServerContext context;
  v1::RankRequest request;
  request.set_tokens(10);
  request.set_cache_bytes(1000);
  v1::RankReply ranked;
  EXPECT_EQ(service.Rank(&context, &request, &ranked).error_code(), grpc::StatusCode::UNAVAILABLE);
  LoadNotice notice;
  notice.name = "a";
  notice.address = "10.0.0.1:8000";
  const v1::ReportLoadRequest report = ToProto(notice);
  v1::ReportLoadReply reply;
  EXPECT_EQ(service.ReportLoad(&context, &report, &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace ckv
