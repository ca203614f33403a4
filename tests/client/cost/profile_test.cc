// Goal: constants follow from measurements, follow a real change, ignore a single pause, and count
// only the transfer of a payload. Method: made-up samples; real holders in this process, whose
// constants are compared before and after calls that wait for much else.

#include "client/cost/profile.h"
#include "client/paged/calibrate_here.h"

#include "client/explain.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

TEST(LiveFabric, IsUnknownBeforeAProbe) {
  LiveFabric live;
  EXPECT_FALSE(live.Get().has_value());
  live.Observe(100, 5);
  EXPECT_FALSE(live.Get().has_value());
  live.Set({16, 25e9});
  EXPECT_EQ(live.Get()->t_probe_us, 16);
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, 25e9);
}

TEST(LiveFabric, FollowsARealChangeAndIgnoresOnePause) {
  LiveFabric live;
  live.Set({16, 25e9});
  live.Observe(100, 1e6);
  EXPECT_EQ(live.Get()->t_probe_us, 16);
  live.Observe(1 << 20, 1e6);
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, 25e9);
  for (int i = 0; i < 200; ++i) live.Observe(100, 40);
  EXPECT_NEAR(live.Get()->t_probe_us, 40, 0.5);
  // 1 MB in 140 us is 100 us of moving after the probe: 10.5 GB/s.
  for (int i = 0; i < 200; ++i) live.Observe(1 << 20, 140);
  EXPECT_NEAR(live.Get()->bandwidth_bytes_per_s, 10.5e9, 0.2e9);
}

// Of a window of equal samples one is far off, to either side and at either end.
TEST(LiveFabric, NoSingleSampleMovesAConstant) {
  // 1 MB in 57.94304 us is 25 GB/s after the probe's 16 us.
  constexpr double kUsual = 16 + double{1 << 20} / 25e3;
  for (const double odd : {1e-3, 1e6}) {
    for (const uint32_t place : {0u, 7u, LiveFabric::kWindowCount - 1}) {
      LiveFabric live;
      live.Set({16, 25e9});
      for (uint32_t i = 0; i < LiveFabric::kWindowCount; ++i) {
        live.Observe(100, i == place ? odd : 16);
        live.Observe(1 << 20, i == place ? odd : kUsual);
      }
      EXPECT_EQ(live.Get()->t_probe_us, 16);
      EXPECT_NEAR(live.Get()->bandwidth_bytes_per_s, 25e9, 1);
    }
  }
}

// A request that waited behind others measures the others, however many samples there are.
TEST(LiveFabric, OnlyRequestsThatWereAloneCount) {
  BusyPeriod requests;
  LiveFabric live(&requests);
  live.Set({16, 25e9});
  for (int i = 0; i < 100; ++i) {
    requests.Begin(1);
    requests.Begin(1);
    requests.End(1);
    live.Observe(1 << 20, 1e4);
    live.Observe(100, 1e4);
    requests.End(1);
    live.Observe(1 << 20, 1e4);  // the last of them was not alone either
    live.Observe(100, 1e4);
  }
  EXPECT_EQ(live.Get()->t_probe_us, 16);
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, 25e9);
  for (int i = 0; i < 100; ++i) {
    requests.Begin(1);
    requests.End(1);
    live.Observe(1 << 20, 140);
    live.Observe(100, 40);
  }
  EXPECT_EQ(live.Get()->t_probe_us, 40);
  EXPECT_NEAR(live.Get()->bandwidth_bytes_per_s, 10.5e9, 0.2e9);
}

// A decode's request: 50 KB, neither small nor large.
TEST(LiveFabric, RequestsOfAnySizeTeach) {
  LiveFabric probe_off, bandwidth_off;
  probe_off.Set({2000, 2e9});
  bandwidth_off.Set({10, 2e7});
  for (int i = 0; i < 300; ++i) {
    probe_off.Observe(50'000, 45);
    bandwidth_off.Observe(50'000, 45);
  }
  EXPECT_NEAR(probe_off.Get()->t_probe_us, 20, 0.5);
  EXPECT_EQ(probe_off.Get()->bandwidth_bytes_per_s, 2e9);
  EXPECT_EQ(bandwidth_off.Get()->t_probe_us, 10);
  EXPECT_NEAR(bandwidth_off.Get()->bandwidth_bytes_per_s, 50e3 / 35e-6, 1e7);
}

// Requests that are faster than a probe show that it was disturbed. Slower ones show nothing about
// it: ends that sleep between calls are slower.
TEST(LiveFabric, AProbeUnderLoadIsDoubted) {
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{50'000}, uint64_t{1} << 20}) {
    LiveFabric live;
    live.Set({20, 1e9});
    const double expected_us = 20 + double(bytes) / 1e9 * 1e6;
    for (int32_t i = 0; i < 100; ++i) EXPECT_FALSE(live.Observe(bytes, expected_us * 50));
    live.Set({20, 1e9});
    for (int32_t i = 1; i < DoubtCount::kCount; ++i)
      EXPECT_FALSE(live.Observe(bytes, expected_us / 30));
    EXPECT_TRUE(live.Observe(bytes, expected_us / 30)) << bytes;
    EXPECT_TRUE(live.doubted());
    live.Set({20, 1e9});
    EXPECT_FALSE(live.doubted());
  }
}

TEST(LiveFabric, BandwidthStaysWhatALaneCanBe) {
  LiveFabric live;
  live.Set({16, 76e9});
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, LiveFabric::kBandwidthMax);
  live.Set({16, 8e9});
  for (int i = 0; i < 200; ++i) live.Observe(1 << 20, 20);  // 260 GB/s
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, LiveFabric::kBandwidthMax);
  for (int i = 0; i < 2000; ++i) live.Observe(1 << 20, 1e9);
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, LiveFabric::kBandwidthMin);
}

// Over shared memory, a request that woke its holder changes T_probe and nothing else.
TEST(LiveFabric, AFixedBandwidthStays) {
  LiveFabric live;
  live.Set({16, 8e9}, /*bandwidth_fixed=*/true);
  for (int i = 0; i < 200; ++i) {
    live.Observe(1 << 20, 1e4);
    live.Observe(100, 40);
  }
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, 8e9);
  EXPECT_EQ(live.Get()->t_probe_us, 40);
}

TEST(LiveFabric, NonsenseIsIgnored) {
  LiveFabric live;
  live.Set({16, 25e9});
  live.Observe(100, 0);
  live.Observe(100, -5);
  live.Observe(100, std::nan(""));
  EXPECT_EQ(live.Get()->t_probe_us, 16);
  for (int i = 0; i < 1000; ++i) live.Observe(1 << 20, 1e-9);
  EXPECT_TRUE(std::isfinite(live.Get()->bandwidth_bytes_per_s));
}

TEST(Calibrate, EveryTermIsMeasured) {
  EXPECT_GT(CopyBandwidth(*Clock::Real()), LiveFabric::kBandwidthMin);
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    Geometry geometry = *NamedGeometry("deepseek-v2-lite");
    geometry.revision = "r";
    geometry.dtype = dtype;
    const RequesterConstants here = *CalibrateHere(geometry, *Clock::Real());
    EXPECT_GT(here.merge_per_row_us, 0);
    EXPECT_GT(here.attend_per_row_token_us, 0);
    EXPECT_GT(here.attend_floor.us_per_token, 0);
    // On a busy machine, a splice of one block may take as long as one of many.
    EXPECT_GT(here.splice_per_token_layer_us + here.splice_per_layer_us, 0);
    EXPECT_FALSE(here.prefill_per_token_layer_us.has_value());
  }
  const Geometry unrotated = [] {
    Geometry geometry = TestGeometry();
    geometry.rope.style = RopeStyle::kNone;
    return geometry;
  }();
  const RequesterConstants still = *CalibrateHere(unrotated, *Clock::Real());
  EXPECT_EQ(still.splice_per_token_layer_us, 0);
  EXPECT_EQ(still.splice_per_layer_us, 0);
}

ExplainCall ExplainOf(std::shared_ptr<const Corpus> corpus, uint32_t begin, uint32_t end,
                      uint32_t rows, uint32_t steps) {
  ExplainCall call;
  call.corpus = std::move(corpus);
  for (uint32_t chunk = begin; chunk < end; ++chunk) call.chunks.push_back(chunk);
  call.query_rows = rows;
  call.steps = steps;
  call.deadline = Soon();
  return call;
}

TEST(Explain, EveryInputIsMeasured) {
  const auto fabric = NewShmFabric(Clock::Real());
  TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  fleet.StartHolder(1);
  const auto corpus = MakeTestCorpus(TestGeometry(), {0, 200, 300}, 1);
  fleet.Load("c", corpus, {0, 0, 1});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  const auto published = *requester->Resolve("c", "", Soon());
  const auto explained = requester->Explain(ExplainOf(published, 0, 3, 16, 4));
  ASSERT_TRUE(explained.ok()) << explained.status();
  const DecisionInput& input = explained->input;
  EXPECT_EQ(input.tokens, 500u);
  EXPECT_EQ(input.query_rows, 16u);
  EXPECT_EQ(input.steps, 4u);
  // h0 has 200 of the 500 tokens, h1 the rest.
  ASSERT_EQ(input.candidates.size(), 2u);
  EXPECT_EQ(explained->holders[0].name, "h0");
  EXPECT_EQ(explained->holders[1].name, "h1");
  EXPECT_DOUBLE_EQ(input.candidates[0].token_share, 0.4);
  EXPECT_DOUBLE_EQ(input.candidates[1].token_share, 0.6);
  for (const Candidate& candidate : input.candidates) {
    ASSERT_TRUE(candidate.fabric.has_value());
    EXPECT_GT(candidate.fabric->t_probe_us, 0);
    EXPECT_GT(candidate.fabric->bandwidth_bytes_per_s, 0);
    EXPECT_GT(candidate.compute.base_us, 0);
    EXPECT_GT(candidate.compute.per_row_token_us, 0);
    EXPECT_GE(candidate.compute.floor.us_per_token, 0);
    EXPECT_EQ(candidate.compute.floor.shown_share, 0);
    EXPECT_EQ(candidate.compute.gather_factor, 0);  // no selection was requested yet
  }
  EXPECT_TRUE(explained->decision.costs[0].offered);
  EXPECT_TRUE(explained->decision.costs[1].offered);
  EXPECT_FALSE(explained->decision.costs[2].offered);
  EXPECT_FALSE(explained->summary.empty());
  for (const HolderView& view : requester->Holders())
    EXPECT_GT(view.constants.bandwidth_bytes_per_s, 0) << view.member.id.name;
  ExplainCall call = ExplainOf(published, 0, 3, 16, 4);
  call.select = 64;
  call.agents = 3;
  call.cache_room_tokens = 7;
  const auto selected = requester->Explain(call);
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_EQ(selected->input.agents, 3u);
  EXPECT_FALSE(selected->decision.cost(Primitive::kFetch).offered);
  for (const Candidate& candidate : selected->input.candidates)
    EXPECT_GT(candidate.compute.gather_factor, 0);
  // Chunks need not follow each other.
  call.chunks = {2, 0};
  const auto listed = requester->Explain(call);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->input.tokens,
            published->chunks[0].token_count + published->chunks[2].token_count);
  for (const std::vector<uint32_t>& chunks : {std::vector<uint32_t>{3}, {1, 1}}) {
    call.chunks = chunks;
    EXPECT_EQ(requester->Explain(call).status().code(), absl::StatusCode::kInvalidArgument);
  }
  // No holder is queried for chunks without tokens, so only local could be offered.
  const auto empty = requester->Explain(ExplainOf(published, 0, 1, 16, 4));
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->decision.choice.has_value());
}

// Three frames of 550 kB a call, posted one behind another: each waits for the kernel and for the
// requester, which writes and merges the others'. None of that is the fabric's.
void ExpectConstantsStay(std::unique_ptr<Fabric> fabric) {
  TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  const auto corpus = MakeTestCorpus(TestGeometry(), {64}, 1);
  fleet.Load("c", corpus, {0});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  AttendCall call;
  call.corpus = *requester->Resolve("c", "", Soon());
  // On a busy machine the probe may find full slots no later than empty ones, and say so.
  absl::Status explained = absl::UnknownError("not asked");
  for (int i = 0; i < 20 && !explained.ok(); ++i)
    explained = requester->Explain(ExplainOf(call.corpus, 0, 1, 16, 1)).status();
  ASSERT_TRUE(explained.ok()) << explained;
  const FabricConstants before = requester->Holders()[0].constants;
  constexpr uint32_t kRows = 5000;
  const std::vector<uint16_t> q(size_t{kRows} * call.corpus->geometry.d_qk);
  test::Answer got(kRows, call.corpus->geometry.d_v);
  call.q = {q.data(), kRows, call.corpus->geometry.d_qk};
  for (uint32_t i = 0; i < LiveFabric::kWindowCount; ++i) {
    call.deadline = Soon();
    ASSERT_TRUE(requester->Attend(call, got.View(), nullptr).ok());
  }
  const FabricConstants after = requester->Holders()[0].constants;
  EXPECT_EQ(after.t_probe_us, before.t_probe_us);
  EXPECT_EQ(after.bandwidth_bytes_per_s, before.bandwidth_bytes_per_s);
}

TEST(Explain, RequestsBehindOneAnotherLeaveTheConstantsAlone) {
  ExpectConstantsStay(NewTcpFabric(Clock::Real()));
  ExpectConstantsStay(NewShmFabric(Clock::Real()));
}

struct ExplainDeath : testing::Test {
  ExplainDeath() {
    fleet.StartHolder(0);
    fleet.StartHolder(1);
    fleet.Load("c", MakeTestCorpus(TestGeometry(), {20, 30}, 1), {0, 1});
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    requester = *Requester::Create(options, &fleet, &fleet);
    published = *requester->Resolve("c", "", Soon());
  }
  absl::StatusOr<Requester::Explanation> Explain(uint32_t begin, uint32_t end) {
    return requester->Explain(ExplainOf(published, begin, end, 16, 4));
  }
  bool Connected(size_t i) { return requester->Holders()[i].connected; }

  std::unique_ptr<Fabric> fabric = NewShmFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> published;
};

// The constants of a holder that left are still cached, and its lane was not used since.
TEST_F(ExplainDeath, AMemberThatLeftIsNeitherConnectedNorOffered) {
  ASSERT_TRUE(Explain(0, 2).ok());
  EXPECT_TRUE(Connected(0) && Connected(1));
  fleet.StopHolder(1);
  fleet.RemoveMember(1);
  EXPECT_TRUE(Connected(0));
  EXPECT_FALSE(Connected(1));
  const auto explained = Explain(0, 2);
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_FALSE(explained->decision.choice.has_value());
  for (const Primitive primitive : {Primitive::kRoute, Primitive::kFetch}) {
    const CostBreakdown& cost = explained->decision.costs[size_t(primitive)];
    EXPECT_FALSE(cost.offered);
    EXPECT_STREQ(cost.why_not, "a holder is not registered with the directory");
  }
  EXPECT_NE(explained->summary.find("gone: holder h1"), std::string::npos) << explained->summary;
  // Chunks that do not need this holder are as before.
  const auto others = Explain(0, 1);
  ASSERT_TRUE(others.ok());
  EXPECT_TRUE(others->decision.costs[size_t(Primitive::kRoute)].offered);
  // An unreachable directory does not count against any holder.
  fleet.set_directory_down(true);
  EXPECT_TRUE(Connected(0));
  EXPECT_FALSE(Connected(1));
}

// The lease has not expired yet: the missing echo shows the failure.
TEST_F(ExplainDeath, AMemberThatDoesNotAnswerIsNotRecommended) {
  ASSERT_TRUE(Explain(0, 2).ok());
  fleet.StopHolder(1);
  EXPECT_EQ(Explain(0, 2).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Connected(0));
  EXPECT_FALSE(Connected(1));
}

TEST_F(ExplainDeath, ConnectsAgainToANewIncarnation) {
  ASSERT_TRUE(Explain(0, 2).ok());
  fleet.StopHolder(1);
  fleet.StartHolder(1);
  EXPECT_FALSE(Connected(1));  // the lane is of the earlier incarnation
  fleet.Load("c", MakeTestCorpus(TestGeometry(), {20, 30}, 1), {0, 1});
  const auto explained = Explain(0, 2);
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_TRUE(explained->decision.costs[size_t(Primitive::kRoute)].offered);
  EXPECT_TRUE(Connected(1));
}

TEST(Explain, ReportsCostsThatCannotBeMeasured) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  const auto corpus = MakeTestCorpus(TestGeometry(), {20}, 1);
  fleet.Load("c", corpus, {0});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  const auto published = *requester->Resolve("c", "", Soon());
  EXPECT_EQ(requester->Explain(ExplainOf(published, 0, 2, 16, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(requester->Explain(ExplainOf(published, 0, 1, 0, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(requester->Explain(ExplainOf(nullptr, 0, 1, 1, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  fleet.StopHolder(0);
  EXPECT_EQ(requester->Explain(ExplainOf(published, 0, 1, 16, 1)).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ckv
