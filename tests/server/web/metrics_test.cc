// Goal: an operator sees over HTTP what a holder does, and why it refuses. Method: a holder in this
// process gets requests that it answers and requests that it refuses; its scrape on loopback must
// show each.

#include "server/web/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/web/metrics_page.h"
#include "server/web/metrics_process.h"
#include "server/web/web_server.h"
#include "tests/server/holder/holder_fixture.h"
#include "tests/server/web/scrape.h"
#include "tests/support/temp_folder.h"
#include "transport/socket.h"

namespace ckv {
namespace {

using test::RawAttend;
using test::Scrape;
using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<WebServer> Serve(WebSources sources) {
  sources.version = "1.2.3";
  sources.commit = "0123abc";
  sources.kernel = "AVX9";
  auto server = WebServer::Start("127.0.0.1:0");
  CKV_CHECK(server.ok());
  (*server)->Serve(std::move(sources));
  return *std::move(server);
}

class HolderMetricsTest : public test::HolderTest {
 protected:
  void SetUp() override {
    HolderTest::SetUp();
    Put();
    WebSources sources;
    sources.holder = holder_.get();
    server_ = Serve(std::move(sources));
  }
  void TearDown() override { server_.reset(); }
  Scrape Look() { return Scrape(server_->address()); }

  std::unique_ptr<WebServer> server_;
};

TEST_P(HolderMetricsTest, ShowsWhatTheProcessUses) {
  const Scrape before = Look();
  EXPECT_GT(before["process_cpu_seconds_total"], 0);
  EXPECT_GT(before["process_resident_memory_bytes"], 1 << 20);
  EXPECT_GE(before["process_virtual_memory_bytes"], before["process_resident_memory_bytes"]);
  EXPECT_GT(before["process_threads"], 1);
  EXPECT_GT(before["process_max_fds"], before["process_open_fds"]);
  // It started less than a day ago.
  const double now = static_cast<double>(WallClockMilliseconds()) / 1e3;
  EXPECT_LT(before["process_start_time_seconds"], now + 1);
  EXPECT_GT(before["process_start_time_seconds"], now - 86400);
  // More than the connections of scrapes that are not closed yet.
  std::vector<UniqueFd> more(20);
  for (UniqueFd& fd : more) fd = UniqueFd(dup(STDERR_FILENO));
  EXPECT_GE(Look()["process_open_fds"], before["process_open_fds"] + 10);
}

// Nothing can be opened then, and an alert on open files must not clear because of that.
TEST(ProcessMetrics, WithoutAFileLeftAllAreOpen) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {3, before.rlim_max};  // 0 to 2 are open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  MetricsPage page;
  AddProcess(page);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::map<std::string, double> values;
  for (const MetricFamily& family : page.Take())
    values[family.name] = family.metric.at(0).gauge.value;
  EXPECT_EQ(values["process_open_fds"], 3);
  EXPECT_EQ(values["process_max_fds"], 3);
}

TEST_P(HolderMetricsTest, ShowsWhatIsHeldAndAnswered) {
  const Scrape before = Look();
  EXPECT_THAT(before.text(),
              HasSubstr("ckv_build_info{version=\"1.2.3\",commit=\"0123abc\",kernel=\"AVX9\"}"));
  EXPECT_EQ(before["ckv_holder_chunks"], 5);
  EXPECT_EQ(before["ckv_holder_tokens"], 5 + 64 + 0 + 130 + 71);
  EXPECT_GE(before["ckv_holder_store_used_bytes"], 270 * 96 * 2 * 3);
  EXPECT_EQ(before["ckv_holder_store_capacity_bytes"], 64 << 20);
  EXPECT_EQ(before["ckv_holder_lease_live"], 1);
  EXPECT_EQ(before["ckv_holder_sessions"], 0);
  EXPECT_EQ(before["ckv_holder_requests_total"], 0);

  const auto client = Open({.lane_count = 2});
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  ExpectRight(*client, Dense({handles[0], handles[1]}, 3));
  RequestHeader fetch = client->Header();
  fetch.kind = WireKind::kFetch;
  fetch.row_count = 0;
  const FetchEntry entry = {.handle = handles[1],
                            .tensor_begin = 0,
                            .tensor_count = 1,
                            .token_begin = 0,
                            .token_count = 4};
  const auto rows = client->CallBytes(fetch, BytesOf(entry));
  ASSERT_TRUE(rows.ok() && rows->status().ok()) << rows.status();
  ASSERT_TRUE(Eventually([](const HolderStats& s) { return s.lane_count == 2; }));

  const Scrape after = Look();
  const std::string fabric(FabricName(GetParam()));
  EXPECT_EQ(after["ckv_holder_lanes{fabric=\"" + fabric + "\"}"], 2);
  EXPECT_EQ(after["ckv_holder_lanes{fabric=\"verbs\"}"], 0);
  EXPECT_EQ(after["ckv_holder_sessions"], 1);
  EXPECT_EQ(after["ckv_holder_requests_total"], 2);
  EXPECT_EQ(after["ckv_holder_query_rows_total"], 3);
  EXPECT_GE(after["ckv_holder_kernel_calls_total"], 1);
  EXPECT_GT(after["ckv_holder_compute_seconds_total"], 0);
  EXPECT_EQ(after["ckv_holder_kernel_seconds_count"], 1);
  EXPECT_EQ(after["ckv_holder_kernel_seconds_bucket{le=\"+Inf\"}"], 1);
  EXPECT_GT(after["ckv_holder_kernel_seconds_sum"], 0);
  EXPECT_EQ(after["ckv_holder_queue_wait_seconds_count{kind=\"attend\"}"], 1);
  EXPECT_EQ(after["ckv_holder_queue_wait_seconds_count{kind=\"push\"}"], 1);
  EXPECT_EQ(after["ckv_holder_load_seconds_count"], 0);
  EXPECT_EQ(after["ckv_holder_pushes_total"], 1);
  EXPECT_EQ(after["ckv_holder_push_bytes_total"], 4 * 96 * 2);
  EXPECT_GT(after["ckv_holder_sent_bytes_total"], 4 * 96 * 2);
  EXPECT_EQ(after["ckv_holder_queue_requests{queue=\"attend\"}"], 0);
  EXPECT_EQ(after["ckv_holder_queue_requests{queue=\"cold\"}"], 0);
}

// A store of which half is on disk, read by a request each.
TEST_P(HolderMetricsTest, ShowsBothTiersAndTheirTraffic) {
  server_.reset();
  options_.store_path = test::TempPath("metrics" + std::string(FabricName(GetParam())));
  options_.capacity_bytes = 128 << 10;  // of 155
  options_.stripe_bytes_max = 64 << 10;
  ASSERT_NO_FATAL_FAILURE(StartHolder());
  for (const test::TestChunk& chunk : corpus_.chunks)
    ASSERT_TRUE(test::PutChunk(holder_->store(), corpus_.geometry, chunk).ok());
  WebSources sources;
  sources.holder = holder_.get();
  server_ = Serve(std::move(sources));
  const Scrape before = Look();
  EXPECT_GT(before["ckv_holder_cold_chunks"], 0);
  EXPECT_EQ(before["ckv_holder_store_evictions_total"], before["ckv_holder_cold_chunks"]);
  EXPECT_EQ(before["ckv_holder_store_loads_total"], 0);
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  // Five tokens of the first chunk are a stripe. It was put first, so it is cold.
  RawAttend selected = Dense({handles[0]}, 1);
  selected.pieces[0].indices = {1, 4};
  selected.pieces[0].k = 2;
  for (int i = 0; i < 3; ++i) ExpectRight(*client, selected);
  const Scrape kept = Look();
  EXPECT_EQ(kept["ckv_holder_stripe_reads_total"], 1);
  EXPECT_EQ(kept["ckv_holder_stripe_hits_total"], 2);
  EXPECT_EQ(kept["ckv_holder_stripe_bytes"], 4096);
  ExpectRight(*client, Dense({handles[0]}, 1));
  ExpectRight(*client, Dense({handles[0], handles[1]}, 1));
  ExpectRight(*client, Dense({handles[0], handles[1], handles[2], handles[3]}, 1));
  holder_->scrub_counters().checked_bytes = 12;
  holder_->scrub_counters().pass_count = 3;
  holder_->scrub_counters().unreadable_count = 4;
  holder_->scrub_counters().repaired_count = 5;
  holder_->scrub_counters().repair_failure_count = 6;
  holder_->scrub_counters().repair_pending_count = 7;
  const Scrape after = Look();
  EXPECT_GT(after["ckv_holder_store_loads_total"], 0);
  EXPECT_EQ(after["ckv_holder_load_seconds_count"], after["ckv_holder_cold_requests_total"]);
  EXPECT_GT(after["ckv_holder_store_load_bytes_total"], 0);
  EXPECT_GT(after["ckv_holder_cold_requests_total"], 0);
  EXPECT_EQ(after["ckv_holder_store_damaged_total"], 0);
  EXPECT_EQ(after["ckv_holder_store_healed_total"], 0);
  EXPECT_EQ(after["ckv_holder_store_scrubbed_bytes_total"], 12);
  EXPECT_EQ(after["ckv_holder_store_scrub_passes_total"], 3);
  EXPECT_EQ(after["ckv_holder_store_unreadable_total"], 4);
  EXPECT_EQ(after["ckv_holder_store_repaired_total"], 5);
  EXPECT_EQ(after["ckv_holder_store_repair_failures_total"], 6);
  EXPECT_EQ(after["ckv_holder_store_repairs_pending"], 7);
}

TEST_P(HolderMetricsTest, WhyRequestsAreRefused) {
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const RawAttend good = Dense({handles[0]}, 1);
  RequestHeader header = client->Header();
  header.deadline_us = 0;
  EXPECT_TRUE(absl::IsDeadlineExceeded(ErrorOf(*client, good, header)));
  holder_->lease().Revoke();
  EXPECT_TRUE(absl::IsUnavailable(ErrorOf(*client, good, client->Header())));
  EXPECT_EQ(Look()["ckv_holder_lease_live"], 0);
  holder_->lease().Grant({test::kEpoch.value + 1}, kInstantMax);
  EXPECT_TRUE(absl::IsAborted(ErrorOf(*client, good, client->Header())));
  Geometry other = corpus_.geometry;
  other.revision = "r2";
  EXPECT_FALSE(test::RawClient::Open(*holder_, *fabric_, other, {}).ok());

  const Scrape scrape = Look();
  EXPECT_EQ(scrape["ckv_holder_expired_total"], 1);
  EXPECT_EQ(scrape["ckv_holder_refusals_total{reason=\"no_lease\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_refusals_total{reason=\"stale_session\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_refusals_total{reason=\"queue_full\"}"], 0);
  EXPECT_EQ(scrape["ckv_holder_errors_total{code=\"DEADLINE_EXCEEDED\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_errors_total{code=\"UNAVAILABLE\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_errors_total{code=\"ABORTED\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_session_refusals_total{code=\"FAILED_PRECONDITION\"}"], 1);
}

// A queue of two: a session's second request that waits is one too many.
TEST_P(HolderMetricsTest, AFullQueue) {
  server_.reset();
  options_.queue_request_count_max = 2;
  ASSERT_NO_FATAL_FAILURE(StartHolder());
  Put();
  WebSources sources;
  sources.holder = holder_.get();
  server_ = Serve(std::move(sources));
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const RawAttend attend = Dense({handles[1]}, 1);
  double refused = 0;
  for (const Instant give_up = test::Soon(); refused == 0;) {
    ASSERT_LT(Clock::Real()->Now(), give_up);
    for (int i = 0; i < 8; ++i) client->Post(attend, client->Header());
    for (int i = 0; i < 8; ++i) {
      const auto reply = client->Await();
      ASSERT_TRUE(reply.ok()) << reply.status();
      refused += absl::IsResourceExhausted(reply->status()) ? 1 : 0;
    }
  }
  EXPECT_EQ(Look()["ckv_holder_refusals_total{reason=\"queue_full\"}"], refused);
  EXPECT_EQ(Look()["ckv_holder_errors_total{code=\"RESOURCE_EXHAUSTED\"}"], refused);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderMetricsTest,
                         testing::Values(FabricKind::kShm, FabricKind::kTcp), test::FabricOf);

// Goal: no drain waits for the exposer, which by itself checks every 2 s whether to end.
TEST(WebServer, EndsAtOnce) {
  const Instant start = Clock::Real()->Now();
  for (int i = 0; i < 5; ++i)
    EXPECT_THAT(Scrape(Serve({})->address()).text(), HasSubstr("ckv_build"));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(5));
}

TEST(Metrics, TheLoadOfAHolder) {
  WebSources sources;
  sources.holder_load = [] {
    return HolderLoad{
        .is_past_elbow = true, .elbow = 2.5, .attends = 7, .busy_part = 0.75, .hot = {}};
  };
  const auto server = Serve(std::move(sources));
  const Scrape seen(server->address());
  EXPECT_EQ(seen["ckv_holder_past_elbow"], 1);
  EXPECT_EQ(seen["ckv_holder_elbow_attends"], 2.5);
  EXPECT_EQ(seen["ckv_holder_batch_attends"], 7);
  EXPECT_EQ(seen["ckv_holder_busy_ratio"], 0.75);
}

// A process without roles, as it is for a moment at its end, has metrics of its own.
TEST(Metrics, AProcessWithoutRoles) {
  const std::string text = MetricsText({});
  EXPECT_THAT(text, HasSubstr("process_start_time_seconds"));
  EXPECT_THAT(text, testing::Not(HasSubstr("ckv_holder_lanes")));
}

TEST(WebServer, AnAddressInUseIsRefused) {
  const auto first = Serve({});
  const auto second = WebServer::Start(first->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address()));
}

}  // namespace
}  // namespace ckv
