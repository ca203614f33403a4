// Goal: the fit returns the constants that its samples were made from, whatever else is among them.
// A holder's calibration reports what its calls take.

#include "client/tools/characterize/calibrate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "client/paged/cache_flush.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

TEST(FitFabric, RecoversTheConstants) {
  // The paper's IBGDA: 16 us, 25 GB/s.
  std::vector<ExchangeSample> samples;
  for (const double rows : {1., 16., 256., 1024., 4096.})
    samples.push_back({rows * 2184, 16 + rows * 2184 / 25e3});
  const FabricConstants exact = FitFabric(samples);
  EXPECT_NEAR(exact.t_probe_us, 16, 1e-6);
  EXPECT_NEAR(exact.bandwidth_bytes_per_s, 25e9, 1e3);
  // Noise of 5 % up and down moves T_probe by at most 10 % and the bandwidth by at most 12 %.
  for (size_t i = 0; i < samples.size(); ++i) samples[i].us *= i % 2 == 0 ? 1.05 : 0.95;
  const FabricConstants noisy = FitFabric(samples);
  EXPECT_NEAR(noisy.t_probe_us, 16, 1.6);
  EXPECT_NEAR(noisy.bandwidth_bytes_per_s, 25e9, 3e9);
}

TEST(FitFabric, AcceptsAnyInput) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const std::vector<ExchangeSample>& samples :
       std::vector<std::vector<ExchangeSample>>{{},
                                                {{100, 5}},
                                                {{100, 5}, {100, 7}},
                                                {{100, 9}, {1000, 3}},
                                                {{nan, 1}, {1, nan}},
                                                {{inf, 1}, {-1, 1}, {1, -1}, {1, inf}, {5, 5}}}) {
    const FabricConstants constants = FitFabric(samples);
    EXPECT_GE(constants.t_probe_us, 0);
    EXPECT_TRUE(std::isfinite(constants.t_probe_us));
    EXPECT_EQ(constants.bandwidth_bytes_per_s, LiveFabric::kBandwidthMax);
  }
}

// Calls of these numbers of query rows over 64 tokens, as the cost model computes them.
std::vector<CallSample> ModelSamples(const Candidate& candidate, const FrameRows& frame,
                                     const std::vector<double>& query_rows) {
  std::vector<CallSample> samples;
  for (const double rows : query_rows) {
    Workload work;
    work.rows = rows;
    work.tokens = work.attended = 64;
    work.query_bytes = 1152;
    work.exchange_bytes = 2184;
    work.frame = frame;
    const double compute_us = rows * 64 * 1e-2;
    samples.push_back({rows, rows * 1152, rows * 1032, compute_us,
                       RouteRound(work, candidate).total_us - compute_us});
  }
  return samples;
}

// The samples are calls as the cost model computes them from constants of a wire and of a memory.
// The fit returns these constants.
TEST(FitCalls, RecoversTheTermsOfTheModel) {
  const FrameRows frame = {284, 256};
  for (const double wire_share : {0., 0.25, 0.6, 1.}) {
    for (const double bandwidth : {120e6, 1.2e9, 9e9}) {
      SCOPED_TRACE(testing::Message() << wire_share << " at " << bandwidth);
      Candidate candidate;
      candidate.fabric = FabricConstants{30, bandwidth};
      candidate.wire_share = wire_share;
      candidate.compute = {0, 1e-2};
      const std::vector<CallSample> samples =
          ModelSamples(candidate, frame, {1., 4., 24., 96., 384., 1536.});
      const FittedFabric fitted = FitCalls(samples, frame);
      EXPECT_NEAR(fitted.constants.t_probe_us, 30, 0.5);
      EXPECT_NEAR(fitted.constants.bandwidth_bytes_per_s, bandwidth, bandwidth * 0.02);
      EXPECT_NEAR(fitted.wire_share, wire_share, 0.051);
      // Without several frames, the samples show nothing about the wire.
      EXPECT_EQ(FitCalls(std::span(samples).first(4), frame).wire_share, 0);
      EXPECT_EQ(FitCalls(samples, FrameRows()).wire_share, 0);
    }
  }
}

// A rate limiter's bucket shows in short calls, which are faster than its rate.
TEST(FitCalls, RecoversTheBurstOfARateLimiter) {
  const FrameRows frame = {284, 256};
  for (const double burst : {0., 16384., 131072.}) {
    for (const double wire_share : {0., 1.}) {
      SCOPED_TRACE(testing::Message() << burst << " with " << wire_share);
      Candidate candidate;
      candidate.fabric = FabricConstants{30, 120e6};
      candidate.wire_share = wire_share;
      candidate.burst_bytes = burst;
      candidate.compute = {0, 1e-2};
      const std::vector<CallSample> samples =
          ModelSamples(candidate, frame, {1., 4., 16., 24., 96., 256., 384., 1536.});
      const FittedFabric fitted = FitCalls(samples, frame);
      EXPECT_EQ(fitted.burst_bytes, burst);
      EXPECT_NEAR(fitted.constants.bandwidth_bytes_per_s, 120e6, 120e6 * 0.03);
      EXPECT_NEAR(fitted.constants.t_probe_us, 30, 3);
    }
  }
}

// Calls over many tokens show what the rows that their kernel reads add to an exchange. Those over
// few show almost nothing of it.
TEST(FitLane, RecoversWhatManyRowsAdd) {
  const double cache_bytes = 2 << 20;
  for (const ColdExchange& cold : {ColdExchange{0, 2e-4, cache_bytes},
                                   {80, 4e-4, cache_bytes},
                                   {0, 4e-4, cache_bytes},
                                   {80, 2e-4, cache_bytes}}) {
    SCOPED_TRACE(testing::Message() << cold.fixed_us << " us, " << cold.us_per_byte);
    Candidate candidate;
    candidate.fabric = FabricConstants{8, 5e9};
    candidate.compute = {0, 1e-2};
    const auto calls = [&](double read_bytes) {
      SizedCalls sized = {read_bytes, ModelSamples(candidate, {}, {1., 16., 64., 256., 1024.})};
      for (CallSample& call : sized.calls)
        call.beside_us += cold.Us(call.bytes_out + call.bytes_in, read_bytes, 5e3);
      return sized;
    };
    const SizedCalls few = calls(cache_bytes / 8), many = calls(4 * cache_bytes);
    const FittedLane lane = FitLane(few, many, {}, cache_bytes);
    EXPECT_NEAR(lane.fabric.constants.t_probe_us, 8, .1);
    EXPECT_NEAR(lane.fabric.constants.bandwidth_bytes_per_s, 5e9, 5e7);
    EXPECT_NEAR(lane.cold_exchange.fixed_us, cold.fixed_us, 1);
    EXPECT_NEAR(lane.cold_exchange.us_per_byte, cold.us_per_byte, 4e-6);
    // Not measured: without a cache's size, or with rows that fit it.
    EXPECT_EQ(FitLane(few, many, {}, 0).cold_exchange, ColdExchange());
    EXPECT_EQ(FitLane(few, few, {}, cache_bytes).cold_exchange, ColdExchange());
  }
}

TEST(FitCalls, AcceptsAnyInput) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const FrameRows frame = {284, 256};
  for (const std::vector<CallSample>& samples : std::vector<std::vector<CallSample>>{
           {},
           {{512, 1e6, 1e6, 100, -50}},
           {{1, 1e3, 1e3, nan, 5}, {512, 1e6, inf, 100, nan}, {512, 1e6, 1e6, 100, 7}},
           {{1, 1e3, 1e3, 0, 0}, {512, 0, 0, 0, 0}, {2048, -1, -1, -1, -1}}}) {
    const FittedFabric fitted = FitCalls(samples, frame);
    EXPECT_TRUE(std::isfinite(fitted.constants.t_probe_us));
    EXPECT_GE(fitted.constants.t_probe_us, 0);
    EXPECT_GE(fitted.constants.bandwidth_bytes_per_s, LiveFabric::kBandwidthMin);
    EXPECT_LE(fitted.constants.bandwidth_bytes_per_s, LiveFabric::kBandwidthMax);
    EXPECT_GE(fitted.wire_share, 0);
    EXPECT_LE(fitted.wire_share, 1);
  }
}

// Goal: counted calls follow a pass over the layers, begin with the first layer, and continue for
// the time that is set. They end, however short the calls are.
TEST(CallAtPace, TurnsOverTheLayersFirst) {
  ManualClock clock;
  std::string calls;
  const auto run = [&](const TimingPace& pace, Duration each) {
    calls.clear();
    const absl::Status status =
        CallAtPace(pace, /*layers=*/3, clock, [&](uint32_t layer, bool counts) {
          calls += static_cast<char>((counts ? '0' : 'a') + layer);
          clock.Advance(each);
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok());
    return calls;
  };
  const auto ms = [](int count) { return Duration(std::chrono::milliseconds(count)); };
  EXPECT_EQ(run({1, ms(0)}, ms(1)), "a0");
  EXPECT_EQ(run({4, ms(0)}, ms(1)), "a0120");
  EXPECT_EQ(run({1, ms(5)}, ms(1)), "abc01201");
  EXPECT_EQ(run({1, ms(2)}, ms(1)), "ab01");
  EXPECT_EQ(run({1, ms(2)}, ms(9)), "a0");
  EXPECT_EQ(run({1, ms(2)}, ms(0)).size(), 3 + kTimingRunCountMax);
  const absl::Status refused = CallAtPace({9, ms(1)}, 3, clock, [](uint32_t layer, bool) {
    return layer == 1 ? absl::InternalError("x") : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsInternal(refused));
}

// Goal: every call finds its rows pushed out, one pass over the layers is enough unless more runs
// are requested, and long calls end the pass early.
TEST(CallCold, PushesOutBeforeEachTurn) {
  ManualClock clock;
  std::string calls;
  const auto run = [&](const TimingPace& pace, Duration each) {
    calls.clear();
    const auto push_out = [&] {
      calls += '|';
      clock.Advance(std::chrono::milliseconds(50));  // which is not counted
      return absl::OkStatus();
    };
    const absl::Status status = CallCold(pace, /*layers=*/3, clock, push_out, [&](uint32_t layer) {
      calls += static_cast<char>('0' + layer);
      clock.Advance(each);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok());
    return calls;
  };
  const auto ms = [](int count) { return Duration(std::chrono::milliseconds(count)); };
  EXPECT_EQ(run({1, ms(0)}, ms(1)), "|0");
  EXPECT_EQ(run({0, ms(0)}, ms(1)), "|0");
  EXPECT_EQ(run({5, ms(0)}, ms(1)), "|012|01");
  EXPECT_EQ(run({1, ms(2)}, ms(1)), "|01");
  EXPECT_EQ(run({1, ms(2)}, ms(9)), "|0");
  EXPECT_EQ(run({1, ms(100)}, ms(1)), "|012");
  const auto fail = [](bool push) {
    return CallCold(
               {1, Duration(0)}, 3, *Clock::Real(),
               [&] { return push ? absl::InternalError("x") : absl::OkStatus(); },
               [](uint32_t) { return absl::AbortedError("y"); })
        .code();
  };
  EXPECT_EQ(fail(true), absl::StatusCode::kInternal);
  EXPECT_EQ(fail(false), absl::StatusCode::kAborted);
}

// curve_bench measures whether the times are right.
TEST(TimeAttendHere, TimesRowsAtAnyPlacement) {
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r";
  geometry.layers = 2;
  const auto cache = CacheForTiming(geometry, 64);
  ASSERT_TRUE(cache.ok()) << cache.status();
  for (const RowCaching caching : {RowCaching::kAsLeft, RowCaching::kCached, RowCaching::kCold})
    EXPECT_GT(TimeAttendHere(**cache, 64, 4, caching, {.run_count = 2}, *Clock::Real()), 0);
}

TEST(TrimmedMean, LeavesOutOutliers) {
  EXPECT_EQ(TrimmedMean({}), 0);
  EXPECT_EQ(TrimmedMean({3}), 3);
  EXPECT_EQ(TrimmedMean({3, 5}), 4);
  EXPECT_EQ(TrimmedMean({9, 1, 5}), 5);
  EXPECT_EQ(TrimmedMean({10, 500, 10, 20, 0}), 40.0 / 3);
  std::vector<double> many(30, 10);
  for (const size_t i : {3, 11, 29}) many[i] = 1e6;
  EXPECT_EQ(TrimmedMean(many), 10);
  EXPECT_EQ(TrimmedMeanError(many), 0);
  EXPECT_EQ(TrimmedMeanError({1, 2, 9}), 0);
  // With the outer values drawn in: 10 10 10 10 20 20 20 20, of which six count.
  EXPECT_NEAR(TrimmedMeanError({0, 10, 10, 10, 20, 20, 20, 99}), 1.8898223 / 0.75, 1e-6);
  // For two clusters, the mean shows how many are in each; a median is in one of them.
  EXPECT_EQ(TrimmedMean({10, 10, 10, 10, 20, 20, 20, 20}), 15);
}

absl::StatusOr<LaneCalibration> Calibrated(Requester& requester, const CalibrationCall& call) {
  LaneCalibrator calibrator(&requester, call, Clock::Real());
  for (int round = 0; round < 3; ++round) CKV_RETURN_IF_ERROR(calibrator.Round());
  return calibrator.Fit();
}

TEST(LaneCalibrator, ReportsWhatWasMeasured) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  test::TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {64, 512}, 1);
  fleet.Load("c", corpus, {0, 0});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  CalibrationCall call;
  call.corpus = *requester->Resolve("c", "", test::Soon());
  call.query_rows = {1, 8, 64};
  call.deadline = test::Soon();
  const auto lane = Calibrated(*requester, call);
  ASSERT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ(lane->holder.anchor_count, 3u);
  ASSERT_EQ(lane->timings.size(), 6u);
  for (const RouteTiming& timing : lane->timings) {
    EXPECT_GT(timing.us, 0);
    EXPECT_GE(timing.us, timing.compute_us);
    EXPECT_EQ(timing.tokens, &timing == &lane->timings[0] ? 64u : timing.tokens);
    // q rows of 96 bf16, partials of 64 bf16 and two f32, and both headers.
    EXPECT_GT(timing.bytes_out, timing.query_rows * 96u * 2);
    EXPECT_GT(timing.bytes_in, timing.query_rows * (64u * 2 + 8));
  }
  EXPECT_GT(lane->fabric.fetch_bandwidth_bytes_per_s, LiveFabric::kBandwidthMin);
  EXPECT_EQ(lane->splice_share, 1);  // no time of a splice was given
  call.splice_per_token_layer_us = 1e6;
  const auto hidden = Calibrated(*requester, call);
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  EXPECT_LT(hidden->splice_share, 0.1);  // no splice takes minutes
  EXPECT_GE(hidden->splice_share, 0);
  // Cold, too. Pushing out with the same chunk evicts nothing: this test has few rows.
  call.push_out = {1};
  LaneCalibrator both(requester.get(), call, Clock::Real());
  EXPECT_EQ(both.part_count(), 2 * 2 * 3 + 1u);
  ASSERT_TRUE(both.Round().ok());
  const LaneCalibration cold = both.Fit();
  EXPECT_EQ(cold.holder.anchor_count, 3u);
  ASSERT_EQ(cold.timings.size(), 12u);
  EXPECT_EQ(cold.timings[2].query_rows, 1u);  // by query rows, then warm and cold
  EXPECT_GE(cold.holder.floor.us_per_token, 0);
  call.push_out = {7};
  EXPECT_EQ(Calibrated(*requester, call).status().code(), absl::StatusCode::kInvalidArgument);
  call.push_out = {};
  call.many = 2;
  EXPECT_EQ(Calibrated(*requester, call).status().code(), absl::StatusCode::kInvalidArgument);
  call.query_rows.clear();
  EXPECT_EQ(Calibrated(*requester, call).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckv
