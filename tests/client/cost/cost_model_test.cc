// Goal: a call of many frames costs the time of its slowest stage and the fill of the others. A
// call of one frame costs what the paper's formula gives, to the bit. Method: the closed form
// against a pipeline run frame by frame; frames against those that AttendPlan cuts.

#include "client/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "client/plan/attend_plan.h"
#include "gtest/gtest.h"
#include "tests/client/cost/predicate_input.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr double kQueryBytes = 1152, kPartialBytes = 1032;

Workload WorkOf(double rows, double frame_rows) {
  Workload work;
  work.rounds = work.layers = 1;
  work.rows = rows;
  work.tokens = work.attended = 512;
  work.row_bytes = 1152;
  work.query_bytes = kQueryBytes;
  work.exchange_bytes = kQueryBytes + kPartialBytes;
  work.frame = {static_cast<uint32_t>(frame_rows), static_cast<uint32_t>(frame_rows)};
  return work;
}

Candidate Over(double bytes_per_us, double wire_share, double us_per_row_token) {
  Candidate candidate;
  candidate.fabric = FabricConstants{20, bytes_per_us * 1e6};
  candidate.wire_share = wire_share;
  candidate.compute = {0, us_per_row_token};
  return candidate;
}

// Each stage takes a frame once the one before has passed it on and its own last one is done.
double PipelineUs(uint32_t frames, const std::array<double, 3>& stage_us) {
  std::array<double, 3> done = {};
  for (uint32_t frame = 0; frame < frames; ++frame) {
    double ready = 0;
    for (size_t stage = 0; stage < 3; ++stage)
      ready = done[stage] = std::max(ready, done[stage]) + stage_us[stage];
  }
  return done[2];
}

// A rate limiter passes the first bytes of each direction at once, and refills at its rate.
TEST(RouteRound, ARateLimiterHasABurst) {
  const double bytes_per_us = 125;
  Candidate candidate = Over(bytes_per_us, /*wire_share=*/1, /*us_per_row_token=*/0);
  candidate.burst_bytes = 16384;
  const auto transfer_us = [&](double rows) {
    return RouteRound(WorkOf(rows, /*frame_rows=*/284), candidate).transfer_us;
  };
  // 4 rows fit the bucket. The next round finds it refilled once 4 rows' bytes could have passed.
  EXPECT_NEAR(transfer_us(4), 4 * kQueryBytes / bytes_per_us, 1e-9);
  EXPECT_NEAR(transfer_us(128), (128 * (kQueryBytes + kPartialBytes) - 2 * 16384) / bytes_per_us,
              1e-9);
  // A kernel that takes longer hides the refill.
  candidate.compute = {1000, 0};
  EXPECT_EQ(transfer_us(4), 0);
  const double whole_us = RouteRound(WorkOf(2840, /*frame_rows=*/284), candidate).total_us;
  candidate.burst_bytes = 0;
  EXPECT_LT(whole_us, RouteRound(WorkOf(2840, /*frame_rows=*/284), candidate).total_us);
}

// The rows that the kernel reads evict what is exchanged, up to all of it.
TEST(RouteRound, ManyRowsLeaveTheExchangeInNoCache) {
  Candidate candidate = Over(/*bytes_per_us=*/1000, /*wire_share=*/0, /*us_per_row_token=*/0);
  Workload work = WorkOf(100, /*frame_rows=*/0);
  work.row_bytes = 1152;
  const double warm_us = RouteRound(work, candidate).transfer_us;
  candidate.cold_exchange = {.fixed_us = 70, .us_per_byte = 1.2e-3, .cache_bytes = 1000 * 1152};
  const double all_us = 70 + 100 * (kQueryBytes + kPartialBytes) * 2e-4;
  for (const auto& [tokens, share] :
       {std::pair(0., 0.), {250., 1 - std::exp(-.0625)}, {1000., 1 - std::exp(-1.)}, {8000., 1.}}) {
    work.attended = tokens;
    const RoundCost cost = RouteRound(work, candidate);
    EXPECT_NEAR(cost.transfer_us, warm_us + share * all_us, 1e-9) << tokens;
    EXPECT_NEAR(cost.total_us, cost.transfer_us + cost.probe_us + cost.compute_us, 1e-9);
  }
  work.selected = true;  // not measured
  EXPECT_EQ(RouteRound(work, candidate).transfer_us, warm_us);
  work.selected = false;
  // A slower link hides what the ends do beside it.
  candidate.fabric->bandwidth_bytes_per_s = 500e6;
  EXPECT_NEAR(RouteRound(work, candidate).transfer_us, 2 * warm_us + 70, 1e-9);
  candidate.fabric->bandwidth_bytes_per_s = 1000e6;
  candidate.token_share = .25;
  work.attended = 1000;
  EXPECT_NEAR(RouteRound(work, candidate).transfer_us, warm_us + (1 - std::exp(-.0625)) * all_us,
              1e-9);
}

TEST(RouteRound, APipelineOfManyFramesOverlapsThem) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const uint32_t frames = 2 + rng() % 30;
    const double bytes_per_us = test::AnyScale(rng), share = double(rng() % 101) / 100;
    const double us_per_row_token = test::AnyScale(rng) * 1e-6;
    const RoundCost cost =
        RouteRound(WorkOf(256. * frames, 256), Over(bytes_per_us, share, us_per_row_token));
    const double out_us = 256 * kQueryBytes / bytes_per_us;
    const double back_us = 256 * kPartialBytes / bytes_per_us;
    const double compute_us = 256 * 512 * us_per_row_token;
    const double want = PipelineUs(
        frames, {share * out_us, compute_us + (1 - share) * (out_us + back_us), share * back_us});
    EXPECT_NEAR(cost.total_us, 20 + want, want * 1e-9);
    EXPECT_NEAR(cost.total_us, cost.probe_us + cost.transfer_us + cost.compute_us, want * 1e-9);
  }
}

// On a wire whose ends copy nothing: 2,048 rows over 1 Gbit/s are 18.9 ms one way, not 35.8.
TEST(RouteRound, TheTwoWaysOfAWireDoNotShareIt) {
  const RoundCost cost = RouteRound(WorkOf(2048, 256), Over(125, 1, 0));
  EXPECT_NEAR(cost.transfer_us, (2048 * kQueryBytes + 256 * kPartialBytes) / 125, 1e-6);
  EXPECT_EQ(cost.compute_us, 0);
}

TEST(RouteRound, OneFrameCostsTheSumOfItsTerms) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 rng(seed);
    const auto rows = double(1 + rng() % 256);
    Candidate candidate = Over(test::AnyScale(rng), 0, test::AnyScale(rng) * 1e-6);
    const double sum = RouteRound(WorkOf(rows, 0), candidate).total_us;
    candidate.wire_share = double(rng() % 101) / 100;
    EXPECT_EQ(RouteRound(WorkOf(rows, 256), candidate).total_us, sum);
    EXPECT_EQ(RouteRound(WorkOf(rows * 1000, 0), candidate).total_us,
              RouteRound(WorkOf(rows * 1000, 0), Over(candidate.fabric->bandwidth_bytes_per_s / 1e6,
                                                      0, candidate.compute.per_row_token_us))
                  .total_us);
    // Without a measurement, nothing overlaps.
    candidate.wire_share = 0;
    EXPECT_EQ(RouteRound(WorkOf(rows * 1000, 256), candidate).total_us,
              RouteRound(WorkOf(rows * 1000, 0), candidate).total_us);
  }
}

// This includes the length at which a second frame begins and frames become shorter.
TEST(RouteRound, NeverFallsAsRowsGrow) {
  const FrameRows frame = FrameRowsOf(*NamedGeometry("deepseek-v3"), false, LaneShape());
  ASSERT_GT(frame.whole, frame.block);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const Candidate candidate =
        Over(test::AnyScale(rng), double(rng() % 101) / 100, test::AnyScale(rng) * 1e-6);
    double before = 0;
    for (uint32_t rows = 1; rows < 1200; ++rows) {
      Workload work = WorkOf(rows, 0);
      work.frame = frame;
      const double us = RouteRound(work, candidate).total_us;
      EXPECT_GE(us, before * (1 - 1e-12)) << rows;
      before = us;
    }
  }
}

// The rows of the tokens are read once, for all requesters that share the kernel. That takes
// equally long for few query rows.
TEST(CostModel, NoKernelIsFasterThanReadingItsRows) {
  DecisionInput input = test::PaperInput("deepseek-v2-lite", 16);
  input.geometry.layers = 1;
  Candidate& holder = input.candidates[0];
  holder.compute = {5, 0.01 / 16};  // 16 query rows take 10 ns a token
  holder.compute.floor.us_per_token = 0.08;
  input.here.attend_per_row_token_us = 0.02 / 16;
  input.here.attend_floor.us_per_token = 0.05;
  const auto route_us = [&] { return Decide(input).cost(Primitive::kRoute).compute_us; };
  const auto here_us = [&] { return Decide(input).cost(Primitive::kFetch).compute_us; };
  for (const uint32_t rows : {1u, 16u, 128u, 1024u}) {
    input.query_rows = rows;
    EXPECT_NEAR(route_us(), 5 + 2048 * std::max(0.01 / 16 * rows, 0.08), 1e-9) << rows;
    EXPECT_NEAR(here_us(), 2048 * std::max(0.02 / 16 * rows, 0.05), 1e-9) << rows;
  }
  input.query_rows = 16;
  holder.concurrent = 7;  // 8 x 16 query rows take exactly the floor's 80 ns
  EXPECT_NEAR(route_us(), 5 + 2048 * 0.08, 1e-9);
  holder.concurrent = 15;
  EXPECT_NEAR(route_us(), 5 + 2048 * 0.16, 1e-9);
  holder.concurrent = 0;
  holder.compute.live = {2, 3};
  EXPECT_NEAR(route_us(), 10 + 2048 * 0.24, 1e-9);
  input.selected = 512;
  holder.compute.gather_factor = 2;  // scattered rows also take longer to read
  EXPECT_NEAR(route_us(), 10 + 2 * 512 * 0.24, 1e-9);
  EXPECT_NEAR(here_us(), 512 * 0.05, 1e-9);
  // A curve has its own floor.
  input.selected = 0;
  holder.compute.live = {};
  holder.compute.curve = {3, 0, 1, {{{16, .01}}}, {.04, .5}};
  EXPECT_NEAR(route_us(), 3 + 2048 * (.04 + .5 * .01), 1e-9);
}

// One chunk, attended densely: a call is cut into the frames that the model assumes.
TEST(FrameRowsOf, MatchesHowACallIsCut) {
  std::mt19937 rng(3);
  for (uint32_t round = 0; round < 60; ++round) {
    auto corpus = std::make_shared<Corpus>();
    corpus->geometry = test::TestGeometry();
    corpus->chunks.resize(1);
    corpus->chunks[0].token_count = 10;
    const LaneShape shape = {.slot_count = 4,
                             .request_bytes_max = 2048 + uint32_t(rng() % 300000),
                             .reply_bytes_max = 1024 + uint32_t(rng() % 300000)};
    const bool f32 = rng() % 2;
    const FrameRows frame = FrameRowsOf(corpus->geometry, f32, shape);
    const auto frames_of = [&](uint32_t rows) {
      const std::vector<uint16_t> q(size_t{rows} * corpus->geometry.d_qk);
      const ContextPart part = {corpus, {}};
      const auto context = *ContextState::Make({&part, 1});
      const RouteSegment segment = {.row_count = rows, .context = context.get()};
      const RouteCall call = {.q = {q.data(), rows, corpus->geometry.d_qk},
                              .segments = {&segment, 1},
                              .wire = f32 ? PartialDtype::kF32 : PartialDtype::kBf16};
      PlannedPeer peer;
      peer.shape = shape;
      AttendPlan plan;
      EXPECT_TRUE(plan.Begin(call).ok());
      EXPECT_TRUE(plan.Cut(call, {&peer, 1}).ok());
      return std::vector<PlannedFrame>(plan.frames().begin(), plan.frames().end());
    };
    EXPECT_EQ(frames_of(frame.whole).size(), 1u);
    // More than 256 rows are cut into whole tiles.
    const auto more = frames_of(frame.whole + 257);
    ASSERT_GE(more.size(), 2u);
    EXPECT_EQ(more[0].row_count, frame.block);
  }
  EXPECT_EQ(FrameRowsOf(*NamedGeometry("deepseek-v3"), false, LaneShape()).block, 256u);
  EXPECT_EQ(FrameRowsOf(Geometry(), false, LaneShape()).whole, kQueryRowCountMax);
  EXPECT_EQ(FrameRowsOf(test::TestGeometry(), false, {1, 1, 1}).whole, 1u);
}

// Three holders on two processors: two turns.
TEST(HostLoads, HoldersOfAHostTakeTurns) {
  const HostSeat here = {kThisHost, 1, 2}, there = {2, 4, 8}, unknown = {};
  HostLoads loads;
  EXPECT_EQ(loads.LongestUs(), 0);
  for (int i = 0; i < 2; ++i) loads.Add(here, 100);
  EXPECT_EQ(loads.Us(here), 100);
  loads.Add(here, 130);
  EXPECT_NEAR(loads.Us(here), 2 * 110, 1e-9);
  loads.Add(there, 500);
  EXPECT_EQ(loads.Us(there), 500);
  EXPECT_EQ(loads.LongestUs(), 500);
  loads.Add(unknown, 1e9);
  loads.Add({3, 1, 0}, 1e9);
  loads.Add({uint16_t{kHostCountMax + 1}, 1, 1}, 1e9);
  EXPECT_EQ(loads.LongestUs(), 500);
  EXPECT_EQ(loads.Us(unknown), 0);
}

TEST(HostLoads, AnExchangeIsWorkOnTheRequestersHostOnly) {
  EXPECT_EQ(BusyUs({kThisHost, 1, 2}, 100, 30), 130);
  EXPECT_EQ(BusyUs({2, 1, 2}, 100, 30), 100);
  EXPECT_EQ(BusyUs({2, 4, 2}, 100, 30), 200) << "four threads on two processors";
  EXPECT_EQ(BusyUs({}, 100, 30), 100);
}

// A route over holders of one host takes their turns; over hosts of their own, the slowest.
TEST(HostLoads, ARouteWaitsForProcessors) {
  DecisionInput input = test::PaperInput("deepseek-v2-lite", 16);
  input.candidates.resize(3, input.candidates[0]);
  for (uint32_t i = 0; i < 3; ++i) {
    input.candidates[i].group = i;
    input.candidates[i].token_share = 1.0 / 3;
  }
  const CostBreakdown apart = Decide(input).cost(Primitive::kRoute);
  EXPECT_EQ(apart.shared_us, 0);
  for (Candidate& candidate : input.candidates) candidate.seat = {kThisHost, 1, 2};
  const CostBreakdown shared = Decide(input).cost(Primitive::kRoute);
  const double round_us = apart.probe_us + apart.transfer_us + apart.compute_us;
  EXPECT_NEAR(shared.shared_us, round_us, 1e-6 * round_us);
  EXPECT_NEAR(shared.total_us, apart.total_us + round_us, 1e-6 * round_us);
  for (Candidate& candidate : input.candidates) candidate.seat.processors = 4;
  EXPECT_EQ(Decide(input).cost(Primitive::kRoute).shared_us, 0);
}

// The caller computes at the same time as its holders. On their host it takes one more turn.
TEST(CallTime, RowsAttendedHereTakeATurn) {
  const HostSeat here = {kThisHost, 1, 2}, there = {2, 1, 2};
  EXPECT_EQ(CallTime(0).Us(), 0);
  EXPECT_EQ(CallTime(70).Us(), 70);
  CallTime remote(70);
  remote.Add(there, 100, 60);
  EXPECT_EQ(remote.Us(), 100);
  CallTime few(70);
  few.Add(here, 100, 90);
  EXPECT_EQ(few.Us(), 100) << "a processor each";
  CallTime many(70);
  for (int i = 0; i < 2; ++i) many.Add(here, 100, 90);
  EXPECT_NEAR(many.Us(), 2 * (90 + 90 + 70) / 3., 1e-9);
  EXPECT_NEAR(many.Us(), 2 * (90 + 90 + 70) / 3., 1e-9) << "asking changes nothing";
  CallTime nothing_here(0);
  for (int i = 0; i < 2; ++i) nothing_here.Add(here, 100, 90);
  EXPECT_EQ(nothing_here.Us(), 100);
}

}  // namespace
}  // namespace ckv
