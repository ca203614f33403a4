// Goal: a directory has a requester's load and digest soon after each change, and while it is idle;
// after a directory's restart, too; and no longer once the requester ends. Method: a reporter and a
// daemon that is the directory, in this process, and rankings over gRPC.

#include "client/grpc/load_reporter.h"

#include <atomic>
#include <string>
#include <vector>

#include "client/grpc/rank_convert.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;

class LoadReporterTest : public test::ServicesTest {
 protected:
  LoadReporterOptions Options() {
    LoadReporterOptions options;
    options.addresses = directory_->address();
    options.name = "engine-0";
    options.address = "10.0.0.1:8000";
    options.ttl = milliseconds(500);
    options.period_min = milliseconds(1);
    return options;
  }
  // Ranks a prompt of one chunk, which has this prefix and 10 tokens.
  v1::RankReply Ranked(ChunkPrefix prefix = 1) {
    v1::RankRequest request;
    v1::RankRequest::Chunk& chunk = *request.add_chunks();
    std::string id(32, '\0');
    std::memcpy(id.data(), &prefix, sizeof(prefix));
    chunk.set_id(id);
    chunk.set_token_count(10);
    request.set_cache_bytes(1000);
    v1::RankReply reply;
    test::Call call;
    const grpc::Status status = directory_stub_->Rank(call.get(), request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
};

TEST_F(LoadReporterTest, TheDirectoryHasEachLoadAndDigest) {
  ServingLoad load = {.free_bytes = 2000, .batch_max = 8, .iteration_base_us = 100};
  {
    LoadReporter reporter(Options());
    ASSERT_TRUE(reporter.Set(load).ok());
    ASSERT_TRUE(reporter.AwaitReported(test::Soon()).ok());
    ASSERT_EQ(Ranked().requesters_size(), 1);
    EXPECT_EQ(Ranked().requesters(0).name(), "engine-0");
    EXPECT_EQ(Ranked().requesters(0).matched_tokens(), 0);
    load.queued = 9;
    ASSERT_TRUE(reporter.Set(load).ok());
    reporter.SetCached({1, 2});
    ASSERT_TRUE(reporter.AwaitReported(test::Soon()).ok());
    EXPECT_EQ(Ranked().requesters(0).load().queued(), 9);
    EXPECT_EQ(Ranked().requesters(0).matched_tokens(), 10);
    EXPECT_EQ(reporter.report().digest_count, 2u);
    // An idle requester stays, because its reports renew the lease of half a second.
    const uint64_t before = reporter.report().report_count;
    const Instant until = test::Soon();
    while (reporter.report().report_count < before + 6 && Clock::Real()->Now() < until)
      EXPECT_EQ(Ranked().requesters_size(), 1);
    EXPECT_GE(reporter.report().report_count, before + 6) << "a second, two leases";
  }
  EXPECT_EQ(Ranked().requesters_size(), 0) << "left at once";
}

TEST_F(LoadReporterTest, ListsWhatIsCachedUntilADigestIsGiven) {
  std::atomic<ChunkPrefix> cached{1};
  LoadReporterOptions options = Options();
  options.list_cached = [&cached] { return std::vector<ChunkPrefix>{cached}; };
  LoadReporter reporter(options);
  ServingLoad load = {.free_bytes = 2000};
  ASSERT_TRUE(reporter.Set(load).ok());
  ASSERT_TRUE(reporter.AwaitReported(test::Soon()).ok());
  EXPECT_EQ(Ranked(1).requesters(0).matched_tokens(), 10);
  cached = 2;
  load.queued = 1;
  ASSERT_TRUE(reporter.Set(load).ok());
  ASSERT_TRUE(reporter.AwaitReported(test::Soon()).ok());
  EXPECT_EQ(Ranked(1).requesters(0).matched_tokens(), 0);
  EXPECT_EQ(Ranked(2).requesters(0).matched_tokens(), 10);
  reporter.SetCached({3});
  load.queued = 2;
  ASSERT_TRUE(reporter.Set(load).ok());
  ASSERT_TRUE(reporter.AwaitReported(test::Soon()).ok());
  EXPECT_EQ(Ranked(2).requesters(0).matched_tokens(), 0);
  EXPECT_EQ(Ranked(3).requesters(0).matched_tokens(), 10);
}

TEST_F(LoadReporterTest, ARestartedDirectoryGetsTheDigestAgain) {
  LoadReporter reporter(Options());
  ASSERT_TRUE(reporter.Set({.free_bytes = 2000}).ok());
  reporter.SetCached({1});
  ASSERT_TRUE(reporter.AwaitReported(test::Soon()).ok());
  Config config = test::ConfigOf({"directory"}, "d");
  config.listen = EndDirectory();
  StartDirectory(config);
  const Instant until = test::Soon();
  v1::RankReply reply;
  do {
    reply = Ranked();
  } while ((reply.requesters_size() == 0 || reply.requesters(0).matched_tokens() == 0) &&
           Clock::Real()->Now() < until);
  ASSERT_EQ(reply.requesters_size(), 1);
  EXPECT_EQ(reply.requesters(0).matched_tokens(), 10);
}

TEST_F(LoadReporterTest, RefusesNamesAndNumbers) {
  LoadReporterOptions options = Options();
  options.address = "nowhere";
  EXPECT_TRUE(absl::IsInvalidArgument(LoadReporter(options).Set({})));
  options = Options();
  options.addresses = "a:1,a:1";
  EXPECT_TRUE(absl::IsInvalidArgument(LoadReporter(options).Set({})));
  LoadReporter reporter(Options());
  EXPECT_TRUE(absl::IsInvalidArgument(reporter.Set({.batch = -1})));
  EXPECT_EQ(reporter.report().report_count, 0u);
}

}  // namespace
}  // namespace ckv
