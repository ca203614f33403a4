// Goal: a curve reproduces the samples it was made from, stays between its anchors, never falls,
// and accepts any numbers. A fit of noisy samples finds its floor, and a floor of 0 changes
// nothing.

#include "client/cost/compute_curve.h"

#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

// 2 us and 0.5 a row, and a token of 0.1 us for one row, 0.4 for 8, 4 for 128: a CPU's.
std::vector<ComputeSample> CpuSamples() {
  std::vector<ComputeSample> samples;
  for (const auto& [rows, us] :
       std::vector<std::pair<double, double>>{{1, .1}, {8, .4}, {128, 4}}) {
    for (const double tokens : {64., 2048.})
      samples.push_back({rows, tokens, 2 + rows * .5 + us * tokens});
  }
  return samples;
}

TEST(ComputeCurve, ReproducesItsAnchors) {
  const std::vector<ComputeSample> samples = CpuSamples();
  const ComputeCurve curve = FitComputeCurve(samples);
  EXPECT_EQ(curve.anchor_count, 3u);
  EXPECT_NEAR(curve.base_us, 2, 1e-9);
  EXPECT_NEAR(curve.per_row_us, .5, 1e-9);
  for (const ComputeSample& sample : samples)
    EXPECT_NEAR(curve.Us(sample.rows, sample.tokens), sample.us, 1e-6 * sample.us);
  EXPECT_NEAR(curve.Us(68, 1000), 2 + 34 + 1000 * (.4 + 4) / 2, 1e-6);  // half-way
  EXPECT_NEAR(curve.Us(1280, 1000), 2 + 640 + 1000 * 40., 1e-6);
  EXPECT_EQ(curve.Us(0, 1000), 0);
}

TEST(ComputeCurve, AddsUpTheRunsOfACall) {
  const ComputeCurve curve = {4, 0.5, 2, {{{16, 0.01}, {128, 0.04}}}, {0.02, 0.25}};
  const std::vector<SharedRun> one = {{16, 700}}, apart = {{16, 700}, {16, 300}},
                               shared = {{32, 700}};
  EXPECT_EQ(curve.Time(16, one).Us(), curve.Us(16, 700));
  EXPECT_EQ(curve.Time(32, shared).Us(), curve.Us(32, 700));
  const KernelTime time = curve.Time(32, apart);
  EXPECT_DOUBLE_EQ(time.fixed_us, 4 + 32 * 0.5) << "once a call, and once a query row";
  EXPECT_DOUBLE_EQ(time.compute_us, 10);
  EXPECT_DOUBLE_EQ(time.memory_us, 20) << "each sequence has rows of its own";
  EXPECT_EQ(time.shown_share, 0.25);
  EXPECT_EQ(curve.Time(0, std::span<const SharedRun>()).Us(), 0);
  // One run computes longer than it reads, the other reads longer: neither hides the other.
  const std::vector<SharedRun> mixed = {{128, 700}, {16, 300}};
  const KernelTime both = curve.Time(144, mixed);
  EXPECT_DOUBLE_EQ(both.Us(), 4 + 72 + (28 + 0.25 * 14) + (6 + 0.25 * 3));
  EXPECT_DOUBLE_EQ(both.MemoryPartUs(), 6 + 0.25 * 14);
}

TEST(ComputeCurve, ADisturbedSampleMovesOnlyItself) {
  std::vector<ComputeSample> samples = CpuSamples();
  const ComputeCurve quiet = FitComputeCurve(samples);
  samples.push_back({8, 2048, 1e6});  // the same point again, with a pause in it
  EXPECT_EQ(FitComputeCurve(samples), quiet);
  samples.push_back({16, 2048, 1});  // faster than 8 rows: taken as they are
  EXPECT_GE(FitComputeCurve(samples).Us(16, 2048), quiet.Us(8, 2048) - 3);
}

TEST(ComputeCurve, NeverFallsAndTakesAnyNumber) {
  std::mt19937_64 rng(7);
  const double odd[] = {0, -1, std::nan(""), std::numeric_limits<double>::infinity()};
  for (int round = 0; round < 200; ++round) {
    std::vector<ComputeSample> samples;
    const auto count = rng() % 20;
    for (uint64_t i = 0; i < count; ++i) {
      const auto any = [&] { return rng() % 8 == 0 ? odd[rng() % 4] : double(rng() % 5000); };
      samples.push_back({any(), any(), any(), rng() % 2 == 0});
    }
    const ComputeCurve curve = FitComputeCurve(samples);
    for (const double value : odd) {
      EXPECT_FALSE(curve.Us(value, 10) < 0);
      EXPECT_FALSE(curve.Us(10, value) < 0);
    }
    double before = 0;
    for (double rows = 1; rows < 1e5; rows *= 1.7) {
      const double us = curve.Us(rows, 777);
      EXPECT_GE(us, before * (1 - 1e-12)) << rows;
      before = us;
    }
  }
}

// The formula before there were floors, over anchors that ascend.
double WithoutFloor(const ComputeCurve& curve, double rows, double tokens) {
  const auto& anchors = curve.anchors;
  const uint32_t last = curve.anchor_count - 1;
  double u = anchors[last].us_per_token * (rows / anchors[last].rows);
  if (rows <= anchors[0].rows) u = anchors[0].us_per_token;
  for (uint32_t i = 1; i <= last && rows > anchors[0].rows && rows < anchors[last].rows; ++i) {
    const ComputeAnchor &a = anchors[i - 1], &b = anchors[i];
    if (rows > b.rows) continue;
    u = a.us_per_token + (b.us_per_token - a.us_per_token) * ((rows - a.rows) / (b.rows - a.rows));
    break;
  }
  return curve.base_us + curve.per_row_us * rows + u * tokens;
}

ComputeCurve RandomCurve(std::mt19937_64& rng) {
  std::uniform_real_distribution<double> any(0, 1);
  ComputeCurve curve = {.base_us = 10 * any(rng), .per_row_us = any(rng)};
  double rows = 0, us = 0;
  const uint64_t count = 1 + rng() % ComputeCurve::kAnchorCountMax;
  for (uint64_t i = 0; i < count; ++i) {
    rows += 1 + double(rng() % 100);
    us += any(rng);
    curve.anchors[curve.anchor_count++] = {rows, us};
  }
  return curve;
}

TEST(ComputeCurve, AFloorOfZeroChangesNothing) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 500; ++round) {
    ComputeCurve curve = RandomCurve(rng);
    curve.floor.shown_share = double(rng() % 3) / 2;
    for (const double rows : {1., 7., 64., 300., 5000.}) {
      const double tokens = double(rng() % 100000);
      EXPECT_EQ(curve.Us(rows, tokens), WithoutFloor(curve, rows, tokens));
    }
  }
}

// The time does not fall with rows, tokens or the time of memory. No call is shorter than reading
// alone or computing alone.
TEST(ComputeCurve, WithAFloorNeverFalls) {
  std::mt19937_64 rng(4);
  std::uniform_real_distribution<double> any(0, 1);
  for (int round = 0; round < 300; ++round) {
    ComputeCurve curve = RandomCurve(rng);
    curve.floor = {4 * any(rng), any(rng)};
    ComputeCurve more = curve;
    more.floor.us_per_token *= 1 + any(rng);
    ComputeCurve shown = curve;
    shown.floor.shown_share += (1 - shown.floor.shown_share) * any(rng);
    double before = 0;
    for (double rows = 1; rows < 1e5; rows *= 1.3) {
      const double us = curve.Us(rows, 777);
      EXPECT_GE(us, before * (1 - 1e-12));
      EXPECT_GE(curve.Us(rows, 778), us);
      EXPECT_GE(more.Us(rows, 777), us);
      EXPECT_GE(shown.Us(rows, 777), us);
      EXPECT_GE(us, WithoutFloor(curve, rows, 777) * (1 - 1e-12));
      EXPECT_GE(us, 777 * curve.floor.us_per_token);
      EXPECT_LE(us,
                (WithoutFloor(curve, rows, 777) + 777 * curve.floor.us_per_token) * (1 + 1e-12));
      before = us;
    }
  }
}

TEST(ComputeCurve, TakesAnyFloor) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  ComputeCurve curve = {2, 0, 2, {{{1, 1}, {10, 4}}}};
  for (const double odd : {-1., nan, -inf}) {
    curve.floor = {odd, odd};
    EXPECT_EQ(curve.Us(10, 100), 402);
    curve.floor = {3, odd};  // a share that is nothing hides all
    EXPECT_EQ(curve.Us(1, 100), 302);
    EXPECT_EQ(curve.Us(10, 100), 402);
  }
  curve.floor = {3, inf};  // and one above 1 is 1
  EXPECT_EQ(curve.Us(1, 100), 402);
  for (const double share : {0., 0.5, 1.}) {
    curve.floor = {inf, share};
    EXPECT_EQ(curve.Us(1, 100), inf);
    EXPECT_EQ(curve.Us(1, 0), 2);
    EXPECT_EQ(curve.Us(1, inf), inf);
    curve.floor = {3, share};
    for (const double value : {nan, inf, -inf, -1., 0.}) {
      EXPECT_FALSE(curve.Us(value, 10) < 0 || std::isnan(curve.Us(value, 10)));
      EXPECT_FALSE(curve.Us(10, value) < 0 || std::isnan(curve.Us(10, value)));
    }
  }
  for (const double odd : {0., -2., nan}) {
    EXPECT_EQ(curve.Time(1, 100).Us({odd, odd}), curve.Us(1, 100));
  }
}

// Two kernels as they were measured (compute_curve.h), and one that only memory bounds.
TEST(FitComputeCurve, FindsAKnownFloorInNoisySamples) {
  struct Kernel {
    std::vector<double> us;  // of 1, 4, 16, 64 and 256 rows
    MemoryFloor floor;
    double share_error;  // where only the product shows, the share is not checked
  };
  const double rows[] = {1, 4, 16, 64, 256};
  for (const Kernel& kernel : {Kernel{{.048, .061, .184, .638, 2.54}, {.07, .1}, .2},
                               Kernel{{.03, .04, .05, .08, .3}, {.1, .5}, .2},
                               Kernel{{.13, .134, .136, .499, 1.94}, {.078, 1}, 1}}) {
    for (uint32_t seed = 0; seed < 50; ++seed) {
      SCOPED_TRACE(testing::Message() << "floor " << kernel.floor.us_per_token << " seed " << seed);
      std::mt19937_64 rng(seed);
      std::uniform_real_distribution<double> noise(-.02, .02);
      std::vector<ComputeSample> samples;
      ComputeCurve truth = {6, .01, 5, {}, kernel.floor};
      for (uint32_t i = 0; i < 5; ++i) {
        truth.anchors[i] = {rows[i], kernel.us[i]};
        for (const double tokens : {64., 2048.}) {
          const double warm_us = 3 + kernel.us[i] * tokens;
          const double cold_us =
              6 + .01 * rows[i] + OverFloor(0, kernel.us[i] * tokens, kernel.floor, tokens).Us();
          samples.push_back({rows[i], tokens, warm_us * (1 + noise(rng)), false});
          samples.push_back({rows[i], tokens, cold_us * (1 + noise(rng)), true});
        }
      }
      const ComputeCurve curve = FitComputeCurve(samples);
      for (const double count : rows) {
        for (const double tokens : {256., 2048., 32768.})
          EXPECT_NEAR(curve.Us(count, tokens) / truth.Us(count, tokens), 1, .08);
      }
      EXPECT_NEAR(curve.floor.shown_share, kernel.floor.shown_share, kernel.share_error);
      const double product = kernel.floor.us_per_token * kernel.floor.shown_share;
      if (kernel.share_error == 1) {
        EXPECT_NEAR(curve.floor.us_per_token * curve.floor.shown_share, product, .35 * product);
      } else {
        EXPECT_NEAR(curve.floor.us_per_token, kernel.floor.us_per_token,
                    .15 * kernel.floor.us_per_token);
      }
    }
  }
}

TEST(FitComputeCurve, ColdSamplesMakeTheBaseAndWarmOnesTheAnchors) {
  std::vector<ComputeSample> samples;
  for (const double tokens : {100., 1000.}) {
    samples.push_back({1, tokens, 2 + .1 * tokens, false});
    samples.push_back({1, tokens, 7 + .3 * tokens, true});
  }
  const ComputeCurve both = FitComputeCurve(samples);
  EXPECT_NEAR(both.base_us, 7, 1e-9);
  EXPECT_NEAR(both.anchors[0].us_per_token, .1, 1e-9);
  EXPECT_NEAR(both.Us(1, 1000), 307, 1e-6);
  // Rows that were sampled only warm or only cold show nothing about memory.
  for (ComputeSample& sample : samples) {
    if (sample.cold) sample.rows = 2;
  }
  const ComputeCurve apart = FitComputeCurve(samples);
  EXPECT_EQ(apart.floor, MemoryFloor());
  EXPECT_NEAR(apart.base_us, 2, 1e-9);
  // A memory that is as fast as a cache has no floor, and cold samples alone are anchors.
  for (ComputeSample& sample : samples) sample = {4, sample.tokens, 5 + sample.tokens, sample.cold};
  EXPECT_EQ(FitComputeCurve(samples).floor, MemoryFloor());
  const ComputeCurve cold =
      FitComputeCurve(std::vector<ComputeSample>{{1, 100, 10, true}, {1, 200, 15, true}});
  EXPECT_EQ(cold.anchor_count, 1u);
  EXPECT_NEAR(cold.Us(1, 1000), 55, 1e-9);
  EXPECT_EQ(cold.floor, MemoryFloor());
}

TEST(RowsBoundByMemory, IsWhereComputingCatchesUp) {
  ComputeCurve curve = {0, 0, 3, {{{1, .1}, {8, .4}, {128, 4}}}};
  EXPECT_EQ(RowsBoundByMemory(curve), 0);
  curve.floor.us_per_token = .05;
  EXPECT_EQ(RowsBoundByMemory(curve), 0);
  curve.floor.us_per_token = .25;
  EXPECT_NEAR(RowsBoundByMemory(curve), 4.5, 1e-9);
  curve.floor.us_per_token = 4;
  EXPECT_NEAR(RowsBoundByMemory(curve), 128, 1e-9);
  curve.floor.us_per_token = 8;
  EXPECT_NEAR(RowsBoundByMemory(curve), 256, 1e-9);
  curve.anchors = {{{1, 0}, {8, 0}, {128, 0}}};
  EXPECT_TRUE(std::isinf(RowsBoundByMemory(curve)));
  EXPECT_EQ(RowsBoundByMemory({}), 0);
}

}  // namespace
}  // namespace ckv
