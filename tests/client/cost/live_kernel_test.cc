// Goal: calls of few query rows teach about memory, calls of many about computing, and both
// together find what changed, however a kernel overlaps the two. Method: made-up times of kernels
// as they were measured.

#include "client/cost/live_kernel.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "client/cost/compute_curve.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

// A vector kernel hides nearly all of the shorter time, a matrix kernel nothing: its 16 query rows
// compute for longer than their rows take to arrive.
const ComputeCurve kVector = {7, 0, 3, {{{1, .048}, {16, .184}, {256, 2.54}}}, {.057, .1}};
const ComputeCurve kMatrix = {6, 0, 3, {{{1, .13}, {16, .136}, {256, 1.94}}}, {.078, .95}};

struct Truth {
  LiveFactors factors;
  void Call(const ComputeCurve& curve, double rows, double tokens, LiveKernel& live) const {
    live.Observe(curve.Time(rows, tokens), curve.Time(rows, tokens).Us(factors));
  }
};

constexpr uint32_t kMany = 20 * BestWindow::kCount;

TEST(LiveKernel, StartsAtOneAndStaysWhereCallsAreAsMeasured) {
  for (const ComputeCurve& curve : {kVector, kMatrix}) {
    LiveKernel live;
    EXPECT_EQ(live.Get(), LiveFactors());
    for (uint32_t i = 0; i < kMany; ++i) {
      for (const double rows : {1., 4., 16., 64., 256.}) Truth().Call(curve, rows, 2048, live);
    }
    EXPECT_NEAR(live.Get().compute, 1, 1e-9);
    EXPECT_NEAR(live.Get().memory, 1, 1e-9);
  }
}

TEST(LiveKernel, ASlowMemoryIsNoSlowProcessor) {
  for (const ComputeCurve& curve : {kVector, kMatrix}) {
    LiveKernel live;
    const Truth truth = {{1, 2}};
    for (uint32_t i = 0; i < kMany; ++i) truth.Call(curve, 1, 32768, live);
    EXPECT_EQ(live.Get().compute, 1);
    EXPECT_NEAR(live.Get().memory, 2, .01);
    EXPECT_NEAR(curve.Time(256, 2048).Us(live.Get()), curve.Time(256, 2048).Us(truth.factors),
                .01 * curve.Us(256, 2048));
  }
}

TEST(LiveKernel, ASlowProcessorIsNoSlowMemory) {
  for (const ComputeCurve& curve : {kVector, kMatrix}) {
    LiveKernel live;
    const Truth truth = {{3, 1}};
    for (uint32_t i = 0; i < kMany; ++i) truth.Call(curve, 256, 2048, live);
    EXPECT_EQ(live.Get().memory, 1);
    EXPECT_NEAR(live.Get().compute, 3, .01);
  }
}

// An accelerator launches a kernel in 15 us. Its computing is hidden behind the reads, so that a
// short call shows the launch alone.
TEST(LiveKernel, AHiddenTermIsNotLearnedFromTheFixedTime) {
  const ComputeCurve curve = {15, 0, 2, {{{16, .0000527}, {128, .000422}}}, {.000384, 0}};
  for (const double launch : {1., 1.3}) {
    LiveKernel live;
    for (uint32_t i = 0; i < kMany; ++i) {
      for (const double tokens : {2048., 8192., 16384., 65536.}) {
        const KernelTime time = curve.Time(16, tokens);
        live.Observe(time, launch * time.fixed_us + time.memory_us);
      }
    }
    EXPECT_NEAR(live.Get().compute, launch, .02);
    EXPECT_NEAR(live.Get().memory, 1, .02);
  }
}

// A call that computes longer in some runs and reads longer in others moves the memory factor,
// however slow memory is, and the prediction of this call becomes right.
TEST(LiveKernel, AMixedCallKeepsToOneFactor) {
  const ComputeCurve curve = {4, 0.5, 2, {{{16, 0.01}, {128, 0.04}}}, {0.02, 0.25}};
  const std::vector<SharedRun> mixed = {{128, 70000}, {16, 30000}, {16, 30000}, {16, 30000}};
  const auto true_us = [&](const LiveFactors& factors) {
    double us = curve.Us(144, 0);
    for (const SharedRun& run : mixed) {
      KernelTime time = curve.Time(run.rows, run.tokens);
      time.fixed_us = 0;
      us += time.Us(factors);
    }
    return us;
  };
  for (const double memory : {1., 2.2, 2.5, 3., 4., .5}) {
    LiveKernel live;
    const KernelTime time = curve.Time(144, mixed);
    for (uint32_t i = 0; i < kMany; ++i) live.Observe(time, true_us({1, memory}));
    EXPECT_EQ(live.Get().compute, 1) << memory;
    EXPECT_NEAR(time.Us(live.Get()) / true_us({1, memory}), 1, .02) << memory;
  }
}

// Memory was slow and is fast again, which calls of many query rows do not show.
TEST(LiveKernel, AStaleMemoryFactorDoesNotSpoilTheOther) {
  const ComputeCurve accelerator = {15, 0, 2, {{{16, .0000527}, {128, .000422}}}, {.000384, 0}};
  for (const ComputeCurve& curve : {accelerator, kVector, kMatrix}) {
    for (const double rows : {128., 256.}) {
      LiveKernel live;
      const Truth slow = {{1, 3}};
      for (uint32_t i = 0; i < kMany; ++i) slow.Call(curve, 1, 65536, live);
      EXPECT_NEAR(live.Get().memory, 3, .05);
      for (uint32_t i = 0; i < kMany; ++i) Truth().Call(curve, rows, 65536, live);
      EXPECT_NEAR(live.Get().compute, 1, .5) << rows;
    }
  }
}

// A slowdown of calls with few query rows is not blamed on those with many, and the other way
// round.
TEST(LiveKernel, ACallMovesOneFactorAtMost) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<double> any(.2, 5);
  for (const ComputeCurve& curve : {kVector, kMatrix}) {
    LiveKernel few, many;
    for (uint32_t i = 0; i < kMany; ++i) {
      few.Observe(curve.Time(1, 2048), any(rng) * curve.Us(1, 2048));
      many.Observe(curve.Time(256, 2048), any(rng) * curve.Us(256, 2048));
    }
    EXPECT_EQ(few.Get().compute, 1);
    EXPECT_NE(few.Get().memory, 1);
    EXPECT_EQ(many.Get().memory, 1);
    EXPECT_NE(many.Get().compute, 1);
  }
}

// The share is visible, so that both terms are in both kinds of calls.
TEST(LiveKernel, TwoKindsOfCallsFindBoth) {
  const ComputeCurve kBetween = {6, 0, 3, {{{1, .062}, {16, .077}, {256, .67}}}, {.1, .6}};
  for (const ComputeCurve& curve : {kVector, kMatrix, kBetween}) {
    for (const LiveFactors& factors :
         {LiveFactors{2, 1}, LiveFactors{1, 3}, LiveFactors{.5, 2}, LiveFactors{1.5, 1.5}}) {
      SCOPED_TRACE(testing::Message() << factors.compute << " " << factors.memory);
      LiveKernel live;
      const Truth truth = {factors};
      for (uint32_t i = 0; i < 10 * kMany; ++i) {
        truth.Call(curve, 1, 32768, live);
        truth.Call(curve, 256, 2048, live);
      }
      for (const double rows : {1., 256.}) {
        EXPECT_NEAR(curve.Time(rows, 4096).Us(live.Get()) / curve.Time(rows, 4096).Us(factors), 1,
                    .02);
      }
      EXPECT_NEAR(live.Get().compute, factors.compute, .03 * factors.compute);
      // A hidden term cannot be learned: the vector kernel's reads hide behind slower computing.
      if (factors.memory >= factors.compute) {
        EXPECT_NEAR(live.Get().memory, factors.memory, .05 * factors.memory);
      }
    }
  }
}

// Rows that are in a cache for a while, and then in memory again.
TEST(LiveKernel, FollowsRowsIntoACacheAndBack) {
  for (const ComputeCurve& curve : {kVector, kMatrix}) {
    LiveKernel live;
    ComputeCurve cached = curve;
    cached.floor = {};
    for (uint32_t i = 0; i < kMany; ++i) live.Observe(curve.Time(1, 32768), cached.Us(1, 32768));
    EXPECT_NEAR(curve.Time(1, 32768).Us(live.Get()) / cached.Us(1, 32768), 1, .1);
    EXPECT_EQ(live.Get().compute, 1);
    for (uint32_t i = 0; i < kMany; ++i) live.Observe(curve.Time(1, 32768), curve.Us(1, 32768));
    EXPECT_NEAR(curve.Time(1, 32768).Us(live.Get()) / curve.Us(1, 32768), 1, .02);
    EXPECT_EQ(live.Get().compute, 1);
  }
}

TEST(LiveKernel, WithoutAFloorAllIsComputing) {
  ComputeCurve curve = kVector;
  curve.floor = {};
  LiveKernel live;
  for (uint32_t i = 0; i < kMany; ++i) live.Observe(curve.Time(1, 64), 2 * curve.Us(1, 64));
  EXPECT_NEAR(live.Get().compute, 2, 1e-9);
  EXPECT_EQ(live.Get().memory, 1);
  LiveKernel fixed;  // calls of nothing but a base
  const KernelTime base = {.fixed_us = 10};
  for (uint32_t i = 0; i < kMany; ++i) fixed.Observe(base, 15);
  EXPECT_NEAR(fixed.Get().compute, 1.5, 1e-9);
  fixed.Reset();
  EXPECT_EQ(fixed.Get(), LiveFactors());
}

TEST(LiveKernel, NonsenseIsIgnored) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  LiveKernel live;
  for (uint32_t i = 0; i < kMany; ++i) {
    for (const double odd : {0., -1., nan, inf, -inf}) {
      live.Observe(kVector.Time(1, 2048), odd);
      live.Observe(kVector.Time(256, 2048), odd);
      live.Observe(kVector.Time(odd, odd), 10);
    }
    live.Observe({.fixed_us = inf, .memory_us = inf}, 10);
    live.Observe({}, 10);
  }
  const LiveFactors factors = live.Get();
  for (const double factor : {factors.compute, factors.memory})
    EXPECT_TRUE(factor >= LiveCompute::kFactorMin && factor <= LiveCompute::kFactorMax) << factor;
}

}  // namespace
}  // namespace ckv
