// Goal: shares, means and quantiles of each kind of distribution agree with closed forms, and wrong
// input is named.

#include "client/sizing/length_distribution.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

double NormalUpTo(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

TEST(LengthDistribution, LogNormalAgreesWithItsClosedForm) {
  const LengthDistribution::LogNormal shape = {9.9, 1.0, 128, 128000};
  const auto lengths = LengthDistribution::Create(shape);
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  const auto up_to = [&](double t) { return NormalUpTo((std::log(t) - shape.mu) / shape.sigma); };
  // E[L; L <= t] of a log-normal is exp(mu + sigma^2 / 2) * Phi((ln t - mu) / sigma - sigma).
  const auto sum_up_to = [&](double t) {
    return std::exp(shape.mu + shape.sigma * shape.sigma / 2) *
           NormalUpTo((std::log(t) - shape.mu) / shape.sigma - shape.sigma);
  };
  const double all = up_to(shape.tokens_max) - up_to(shape.tokens_min);
  const double mean = (sum_up_to(shape.tokens_max) - sum_up_to(shape.tokens_min)) / all;
  EXPECT_NEAR(lengths->Mean(), mean, mean * 1e-5);
  for (const double t : {200.0, 1000.0, 19400.0, 60000.0, 127000.0}) {
    const double above = (up_to(shape.tokens_max) - up_to(t)) / all;
    EXPECT_NEAR(lengths->ShareAbove(t), above, 1e-5) << t;
    const double mean_above = (sum_up_to(shape.tokens_max) - sum_up_to(t)) / all / above;
    EXPECT_NEAR(lengths->MeanAbove(t), mean_above, mean_above * 1e-4) << t;
    const double mean_below = (sum_up_to(t) - sum_up_to(shape.tokens_min)) / all / (1 - above);
    EXPECT_NEAR(lengths->MeanUpTo(t), mean_below, mean_below * 1e-4) << t;
    EXPECT_NEAR(lengths->Quantile(1 - above), t, t * 1e-4);
  }
}

TEST(LengthDistribution, AHistogramHasGapsAndEnds) {
  const auto lengths =
      LengthDistribution::Create(std::vector<LengthDistribution::Bin>{{0, 100, 1}, {200, 300, 3}});
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_DOUBLE_EQ(lengths->Mean(), (50 + 3 * 250) / 4.0);
  EXPECT_DOUBLE_EQ(lengths->ShareAbove(50), 0.875);
  EXPECT_DOUBLE_EQ(lengths->ShareAbove(150), 0.75);
  EXPECT_DOUBLE_EQ(lengths->MeanAbove(150), 250);
  EXPECT_DOUBLE_EQ(lengths->MeanUpTo(150), 50);
  EXPECT_DOUBLE_EQ(lengths->Quantile(0.125), 50);
  EXPECT_EQ(lengths->ShareAbove(1e6), 0);
  EXPECT_EQ(lengths->MeanAbove(1e6), 1e6) << "there is none";
  EXPECT_EQ(lengths->MeanUpTo(0), 0);
  const auto length = [](double tokens) { return tokens; };
  EXPECT_DOUBLE_EQ(lengths->MeanOf(length, 0, 300), lengths->Mean());
  EXPECT_DOUBLE_EQ(lengths->MeanOf(length, 250, 300), 275);
  EXPECT_EQ(lengths->MeanOf(length, 110, 190), 0);
}

TEST(LengthDistribution, ATraceIsItsLengths) {
  const auto lengths = LengthDistribution::OfLengths({30, 10, 10, 50});
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_DOUBLE_EQ(lengths->Mean(), 25);
  EXPECT_DOUBLE_EQ(lengths->ShareAbove(20), 0.5);
  EXPECT_DOUBLE_EQ(lengths->MeanAbove(20), 40);
  EXPECT_NEAR(lengths->Quantile(0.5), 10, 0.5);
}

TEST(LengthDistribution, WrongInputIsNamed) {
  using Bins = std::vector<LengthDistribution::Bin>;
  const auto of_bins = [](const Bins& bins) {
    return std::string(LengthDistribution::Create(bins).status().message());
  };
  EXPECT_EQ(of_bins({}), "0 bins, need 1 to 1048576");
  EXPECT_EQ(of_bins({{0, 10, 0}}), "no bin has a weight");
  EXPECT_EQ(of_bins({{10, 10, 1}}), "[0].to: not above from");
  EXPECT_EQ(of_bins({{0, 10, 1}, {5, 20, 1}}),
            "[1].from: below the end of the bin before: lengths must rise");
  EXPECT_EQ(of_bins({{0, 10, -1}}), "[0].weight: below 0");
  EXPECT_EQ(of_bins({{0, 2e9, 1}}), "[0].to: above 1e9 tokens");
  const auto of_shape = [](const LengthDistribution::LogNormal& shape) {
    return std::string(LengthDistribution::Create(shape).status().message());
  };
  EXPECT_EQ(of_shape({9.9, 0, 1, 10}), "sigma: not above 0");
  EXPECT_EQ(of_shape({9.9, 1, 10, 10}), "tokens_max: not above tokens_min");
  EXPECT_EQ(of_shape({90, 1, 1, 10}), "mu: almost no length is within the limits");
  EXPECT_EQ(of_shape({std::numeric_limits<double>::quiet_NaN(), 1, 1, 10}), "mu: not a number");
  EXPECT_EQ(LengthDistribution::OfLengths({5, 0}).status().message(),
            "[1]: a length of 0 tokens, must be 1 to 1e9");
}

}  // namespace
}  // namespace ckv
