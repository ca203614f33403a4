// Goal: the estimate is where 5 of 100 rounds are longer, and one stopped holder does not move it
// far.

#include "client/cost/round_times.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace ckv {
namespace {

constexpr uint64_t kPairs = 1000;

Duration Us(double us) { return Duration(static_cast<int64_t>(us * 1e3)); }

TEST(RoundTimes, IsUnknownOfFewRounds) {
  RoundTimes times;
  for (uint32_t i = 0; i < RoundTimes::kCountMin; ++i) {
    EXPECT_FALSE(times.P95(kPairs)) << i;
    times.Observe(kPairs, Us(100));
  }
  ASSERT_TRUE(times.P95(kPairs));
  EXPECT_FALSE(times.P95(4 * kPairs)) << "another size";
}

TEST(RoundTimes, RestsWhereFiveOfAHundredAreLonger) {
  std::mt19937 rng(1);
  std::lognormal_distribution<double> spread(std::log(200.0), 0.5);
  RoundTimes times;
  for (int i = 0; i < 5000; ++i) times.Observe(kPairs, Us(spread(rng)));
  int longer = 0;
  constexpr int kRounds = 20000;
  for (int i = 0; i < kRounds; ++i) {
    const Duration took = Us(spread(rng));
    longer += took > *times.P95(kPairs) ? 1 : 0;
    times.Observe(kPairs, took);
  }
  EXPECT_NEAR(double(longer) / kRounds, 0.05, 0.005);
}

TEST(RoundTimes, AStoppedHolderCountsAsAnyLongRound) {
  RoundTimes times;
  for (int i = 0; i < 2000; ++i) times.Observe(kPairs, Us(i % 20 == 0 ? 150 : 100));
  const Duration before = *times.P95(kPairs);
  times.Observe(kPairs, std::chrono::seconds(10));
  EXPECT_LT(*times.P95(kPairs), 1.05 * before);
  for (int i = 0; i < 100; ++i) times.Observe(kPairs, Us(1500));
  EXPECT_NEAR(double(times.P95(kPairs)->count()), 1.5e6, 1e5) << "ten times as slow for good";
}

}  // namespace
}  // namespace ckv
