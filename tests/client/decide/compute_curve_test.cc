// Goal: a curve gives back what it was made of, lies between its anchors, never falls, and takes
// whatever numbers it is given.

#include "client/decide/compute_curve.h"

#include <cmath>
#include <limits>
#include <random>
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

TEST(ComputeCurve, GivesBackWhatItWasMadeOf) {
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
      samples.push_back({any(), any(), any()});
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

}  // namespace
}  // namespace ckv
