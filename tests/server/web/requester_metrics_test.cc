// Goal: an operator sees over HTTP which fabrics a requester uses and what fell back, in a form
// that Prometheus takes. Method: a requester and a holder in this process, over fabrics that fail
// on demand; Prometheus' own tool checks names and syntax of everything that can be served.

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/cost/live_error.h"
#include "client/cost/profile_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/web/web_server.h"
#include "tests/server/web/scrape.h"
#include "tests/support/scripted_fabric.h"
#include "tests/support/soon.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Scrape;

std::unique_ptr<WebServer> ServeRequester(WebSources sources) {
  auto server = WebServer::Start("127.0.0.1:0");
  CKV_CHECK(server.ok());
  (*server)->Serve(std::move(sources));
  return *std::move(server);
}

struct RequesterMetricsTest : testing::Test {
  RequesterMetricsTest() {
    options.fabrics = {&verbs, &tcp};
    options.rdma_fallback = RdmaFallback::kTcp;
    options.clock = &clock;
    options.connect_timeout = std::chrono::hours(1000);
    fleet.StartHolder(0);
    fleet.Load("c", corpus, {0});
  }

  // A profile whose kernel takes 10 s.
  void UseSlowProfile() {
    options.fabrics = {&tcp};
    Profile profile;
    profile.subject = SubjectOf(corpus.geometry, HostIdentity(), {}, /*quick=*/true);
    profile.lanes = {{"h0", "tcp", {20, 1e9, 1e9}, {1e7, 0, 1, {{{1, 1}}}}}};
    options.profile = std::make_shared<const Profile>(profile);
  }
  // Attends "c" by frames whose time is predicted.
  void AttendPredicted(Requester& requester, uint32_t count) {
    ExplainCall explain;
    explain.corpus = *requester.Resolve("c", "", kInstantMax);
    explain.chunks = {0};
    explain.query_rows = 1;
    explain.deadline = clock.Now() + std::chrono::hours(10'000);
    // On a busy machine a probe may measure full slots as no slower than empty ones; Explain then
    // fails.
    absl::Status explained = absl::UnknownError("not asked");
    for (int i = 0; i < 20 && !explained.ok(); ++i) explained = requester.Explain(explain).status();
    ASSERT_TRUE(explained.ok()) << explained;
    const std::vector<uint16_t> q(corpus.geometry.d_qk);
    std::vector<float> o(corpus.geometry.d_v), m(1), l(1);
    AttendCall call;
    call.corpus = explain.corpus;
    call.q = {q.data(), 1, corpus.geometry.d_qk};
    call.deadline = explain.deadline;
    for (uint32_t i = 0; i < count; ++i) {
      const PartialView out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
      ASSERT_TRUE(requester.Attend(call, out, nullptr).ok());
    }
  }
  // Attends `context` once. Returns how many pairs used locally cached rows.
  uint64_t AttendOnce(Requester& requester, const Context& context) {
    const std::vector<uint16_t> q(corpus.geometry.d_qk);
    std::vector<float> o(corpus.geometry.d_v), m(1), l(1);
    const Segment segment = {.row_count = 1, .context = &context};
    LayerCall call;
    call.q = {q.data(), 1, corpus.geometry.d_qk};
    call.segments = {&segment, 1};
    call.precision = Precision::kExact;
    call.deadline = clock.Now() + std::chrono::hours(10'000);
    AttendReport report;
    const PartialView out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
    const absl::Status attended = requester.Attend(call, out, &report);
    EXPECT_TRUE(attended.ok()) << attended;
    return report.cached_pairs;
  }

  test::ShiftedClock clock;
  test::ScriptedFabric tcp{FabricKind::kTcp, &clock};
  test::ScriptedFabric verbs{FabricKind::kVerbs, &clock};
  test::TestFleet fleet{{&tcp, &verbs}};
  test::TestCorpus corpus = test::MakeTestCorpus(test::TestGeometry(), {3}, 1);
  RequesterOptions options;
};

// Goal: what a call had to do to get its answer after all is never silent.
TEST_F(RequesterMetricsTest, AFailoverShows) {
  options.fabrics = {&tcp};
  fleet.StartHolder(1);
  fleet.Lease("c", corpus, 1, {0});
  auto requester = *Requester::Create(options, &fleet, &fleet);
  WebSources sources;
  sources.requester = requester.get();
  const auto server = ServeRequester(std::move(sources));
  const Instant deadline = clock.Now() + std::chrono::hours(10'000);
  FetchCall call;
  call.corpus = *requester->Resolve("c", "", deadline);
  call.chunk_end = 1;
  call.tensor_end = corpus.geometry.layers;
  call.deadline = deadline;
  const auto sink = [](const FetchedRows&) { return absl::OkStatus(); };
  ASSERT_TRUE(requester->Fetch(call, sink).ok());
  EXPECT_EQ(Scrape(server->address())["ckv_requester_failovers_total"], 0);
  fleet.StopHolder(0);
  // Equal replicas take turns, so one of two fetches uses the holder that is gone.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(requester->Fetch(call, sink).ok());
  (void)requester->Explain({});
  const Scrape scrape(server->address());
  EXPECT_EQ(scrape["ckv_requester_fetches_total"], 3);
  EXPECT_EQ(scrape["ckv_requester_explains_total"], 1);
  // The requester first opens a new session, with the replica whose turn it is.
  EXPECT_GE(scrape["ckv_requester_reopens_total"] + scrape["ckv_requester_failovers_total"], 1);
}

// Goal: rows that were cached locally, and the reason, show by name. The holder is reached over
// tcp, so they are copied (prefetched), not mapped.
TEST_F(RequesterMetricsTest, ShowsPrefetchedRows) {
  options.fabrics = {&tcp};
  options.local_cache_bytes = uint64_t{64} << 20;
  auto requester = *Requester::Create(options, &fleet, &fleet);
  WebSources sources;
  sources.requester = requester.get();
  const auto server = ServeRequester(std::move(sources));
  const Instant deadline = clock.Now() + std::chrono::hours(10'000);
  const ContextPart part = {*requester->Resolve("c", "", deadline), {}};
  const auto context =
      requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, deadline);
  ASSERT_TRUE(context.ok()) << context.status();
  const Scrape scrape(server->address());
  const LocalRowStats stats = requester->Stats().local_cache;
  EXPECT_GT(stats.bytes, 0u);
  EXPECT_EQ(scrape["ckv_requester_local_cache_bytes"], double(stats.bytes));
  EXPECT_EQ(scrape["ckv_requester_local_cache_chunks"], 1);
  EXPECT_EQ(scrape["ckv_requester_prefetches_total"], 1);
  EXPECT_EQ(scrape["ckv_requester_prefetches_failed_total"], 0);
  EXPECT_EQ(scrape["ckv_requester_local_cache_evictions_total"], 0);
  EXPECT_EQ(scrape["ckv_requester_prefetched_bytes_total"], double(stats.prefetched_bytes));
  EXPECT_EQ(scrape["ckv_requester_mapped_bytes_total"], 0);
  EXPECT_EQ(scrape["ckv_requester_reused_tokens_total"], 3);
  EXPECT_EQ(scrape["ckv_requester_recomputed_tokens_total"], 0);
  EXPECT_EQ(scrape["ckv_requester_decisions_total{primitive=\"fetch\",reason=\"policy_cache\"}"],
            1);
  for (const char* name :
       {"ckv_requester_routed_seconds_total", "ckv_requester_prefetch_seconds_total",
        "ckv_requester_local_cache_saved_seconds_total"})
    EXPECT_GE(scrape[name], 0) << name;
}

// Goal: the use of tcp in place of verbs is never silent.
TEST_F(RequesterMetricsTest, AFallbackShows) {
  verbs.set_connect_error(absl::UnavailableError("the port is down"));
  auto requester = *Requester::Create(options, &fleet, &fleet);
  WebSources sources;
  sources.requester = requester.get();
  const auto server = ServeRequester(std::move(sources));
  EXPECT_EQ(Scrape(server->address())["ckv_requester_rdma_fallbacks_total"], 0);
  const int directory_calls = fleet.directory_calls();

  const Instant deadline = clock.Now() + std::chrono::hours(10'000);
  const auto resolved = requester->Resolve("c", "", deadline);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  std::mt19937 rng(1);
  const Geometry& g = corpus.geometry;
  const std::vector<uint16_t> q = test::RandomBf16(g.d_qk, rng);
  std::vector<float> o(g.d_v), m(1), l(1);
  AttendCall call;
  call.corpus = *resolved;
  call.q = {q.data(), 1, g.d_qk};
  call.deadline = deadline;
  const absl::Status attended =
      requester->Attend(call, {o.data(), m.data(), l.data(), PartialDtype::kF32}, nullptr);
  ASSERT_TRUE(attended.ok()) << attended;

  const int requested = fleet.directory_calls();
  EXPECT_GT(requested, directory_calls);
  const Scrape scrape(server->address());
  EXPECT_EQ(scrape["ckv_requester_rdma_fallbacks_total"], 1);
  EXPECT_EQ(scrape["ckv_requester_call_seconds_count{primitive=\"route\"}"], 1);
  EXPECT_EQ(scrape["ckv_requester_lane_seconds_count{fabric=\"verbs\"}"], 0);
  EXPECT_EQ(scrape.text().find("fabric=\"unknown\""), std::string::npos);
  EXPECT_EQ(scrape["ckv_requester_lanes{holder=\"h0\",fabric=\"tcp\"}"], 1);
  EXPECT_EQ(scrape["ckv_requester_holder_connected{holder=\"h0\"}"], 1);
  EXPECT_EQ(scrape["ckv_requester_holder_fallback{holder=\"h0\"}"], 1);
  EXPECT_EQ(scrape["ckv_requester_holder_in_flight{holder=\"h0\"}"], 0);
  EXPECT_GT(scrape["ckv_requester_holder_probe_seconds{holder=\"h0\"}"], 0);
  EXPECT_EQ(scrape["ckv_requester_retries_total"], 0);
  EXPECT_EQ(fleet.directory_calls(), requested) << "a scrape asks nobody";
}

// Goal: a model that has become wrong is seen. Method: a profile whose kernel takes 10 s, and calls
// that take their real time.
TEST_F(RequesterMetricsTest, ShowsTheErrorOfTheModel) {
  UseSlowProfile();
  auto requester = *Requester::Create(options, &fleet, &fleet);
  WebSources sources;
  sources.requester = requester.get();
  const auto server = ServeRequester(std::move(sources));
  const std::string series = "ckv_requester_holder_model_error_ratio{holder=\"h0\"}";
  AttendPredicted(*requester, LiveError::kSampleCountMin);
  const Scrape scrape(server->address());
  EXPECT_GT(scrape[series], 0.5) << scrape.text();
  EXPECT_LE(scrape[series], 1) << "a tiny share of 10 s";
}

// Goal: each way to an answer has its times, and those that were predicted their ratios. Method:
// "c" is routed, "big" is prefetched, and "d" is recomputed by a function that costs nothing.
TEST_F(RequesterMetricsTest, EachWayHasItsTimes) {
  const std::unique_ptr<Fabric> wire = NewTcpFabric(Clock::Real());
  test::TestFleet ways({wire.get()});
  ways.StartHolder(0);
  ways.Load("c", corpus, {0});
  // 345,600 bytes: slices of less than LiveBandwidth::kBytesMin have no predicted time.
  ways.Load("big", test::MakeTestCorpus(test::TestGeometry(), {600}, 3), {0});
  ways.Load("d", test::MakeTestCorpus(test::TestGeometry(), {3}, 2), {0});
  UseSlowProfile();
  options.clock = Clock::Real();
  options.fabrics = {wire.get()};
  options.local_cache_bytes = uint64_t{64} << 20;
  auto requester = *Requester::Create(options, &ways, &ways);
  WebSources sources;
  sources.requester = requester.get();
  const auto server = ServeRequester(std::move(sources));
  AttendPredicted(*requester, 5);
  const Instant deadline = clock.Now() + std::chrono::hours(10'000);
  const ContextPart prefetched_part = {*requester->Resolve("big", "", deadline), {}};
  const auto prefetched =
      requester->Open({.parts = {&prefetched_part, 1}, .policy = ContextPolicy::kCache}, deadline);
  ASSERT_TRUE(prefetched.ok()) << prefetched.status();
  EXPECT_GT(AttendOnce(*requester, *prefetched), 0u);
  Recompute recompute;
  recompute.us_per_token = 1e-6;
  recompute.make = [](const RecomputeCall& call) {
    for (uint32_t layer = 0; layer < call.corpus->geometry.layers; ++layer) {
      const std::span<std::byte> rows = call.rows(0, layer);
      std::fill(rows.begin(), rows.end(), std::byte{0});
    }
    return absl::OkStatus();
  };
  const ContextPart anew_part = {*requester->Resolve("d", "", deadline), {}};
  ContextExpectation expect;
  expect.steps = 1'000'000'000;
  const auto anew = requester->Open(
      {.parts = {&anew_part, 1}, .expect = expect, .recompute = recompute}, deadline);
  ASSERT_TRUE(anew.ok()) << anew.status();
  const Instant give_up = test::Soon();
  while (requester->Stats().local_cache.recomputed_token_count == 0) {
    AttendOnce(*requester, *anew);
    ASSERT_LT(Clock::Real()->Now(), give_up) << "rows were not recomputed";
  }
  const Scrape scrape(server->address());
  const auto count = [&](const char* name, const char* primitive) {
    return scrape[absl::StrCat(name, "_count{primitive=\"", primitive, "\"}")];
  };
  for (const char* primitive : {"route", "cached", "prefetch", "local"})
    EXPECT_GE(count("ckv_requester_call_seconds", primitive), 1) << primitive;
  EXPECT_EQ(count("ckv_requester_call_seconds", "fetch"), 0);
  EXPECT_EQ(count("ckv_requester_call_seconds", "local"), 1);
  EXPECT_EQ(scrape["ckv_requester_recomputed_tokens_total"], 3);
  EXPECT_GE(count("ckv_requester_measured_over_predicted_ratio", "route"), 1);
  EXPECT_GE(count("ckv_requester_measured_over_predicted_ratio", "prefetch"), 1);
  EXPECT_GT(scrape["ckv_requester_call_seconds_sum{primitive=\"prefetch\"}"], 0);
}

// Everything that a process can serve, through promtool: every family has a help text, counters are
// called _total, units are base units.
TEST_F(RequesterMetricsTest, PrometheusFindsNoFault) {
  auto requester = *Requester::Create(options, &fleet, &fleet);
  DirectoryState directory({});
  LocalRegistrar registrar(&directory);
  RegistrationOptions member;
  member.member.id = {"h0"};
  member.member.control_address = "127.0.0.1:7401";
  Registration registration(member, &registrar, /*gate=*/nullptr);
  ASSERT_TRUE(registration.AwaitLease(Clock::Real()->Now() + std::chrono::seconds(20)).ok());
  ASSERT_TRUE(requester->Resolve("c", "", kInstantMax).ok());
  WebSources sources;
  sources.version = "1.2.3";
  sources.directory = &directory;
  sources.holder = &fleet.holder(0);
  sources.requester = requester.get();
  sources.attend_count = sources.attend_error_count = [] { return 7; };
  sources.directory_connected = [] { return true; };
  sources.registrations = {&registration};
  const auto server = ServeRequester(std::move(sources));
  const Scrape scrape(server->address());
  EXPECT_EQ(scrape["ckv_requester_attends_total"], 7);
  EXPECT_EQ(scrape["ckv_lease_held{role=\"holder\"}"], 1);
  EXPECT_EQ(scrape["ckv_lease_registrations_total{role=\"holder\"}"], 1);
  EXPECT_EQ(scrape["ckv_directory_members{role=\"holder\"}"], 1);
  EXPECT_EQ(scrape["ckv_requester_directory_connected"], 1);

  if (std::system("promtool --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no promtool here; to run it: deploy/install-packages.sh tests";
  }
  const std::string path = test::TempPath("scrape.txt");
  std::ofstream(path) << scrape.text();
  EXPECT_EQ(std::system(("promtool check metrics < '" + path + "'").c_str()), 0) << scrape.text();
}

}  // namespace
}  // namespace ckv
