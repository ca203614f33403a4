#include "client/cost/ratio_histogram.h"

#include <gtest/gtest.h>

namespace ckv {
namespace {

TEST(RatioHistogram, ABucketHoldsItsBound) {
  RatioHistogram ratios;
  for (const double bound : RatioCounts::kBounds) {
    ratios.Observe(100, 100 * bound * .999);
    ratios.Observe(100, 100 * bound * 1.001);
  }
  // The first has one sample, each other one from its own bound and one from that before it.
  const RatioCounts counts = ratios.Read();
  EXPECT_EQ(counts.counts.front(), 1u);
  EXPECT_EQ(counts.counts.back(), 1u);
  for (size_t i = 1; i + 1 < counts.counts.size(); ++i) EXPECT_EQ(counts.counts[i], 2u) << i;
}

TEST(RatioHistogram, IgnoresWhatIsNotATime) {
  RatioHistogram ratios;
  ratios.Observe(0, 5);
  ratios.Observe(5, 0);
  ratios.Observe(-1, 5);
  EXPECT_EQ(ratios.Read().sum, 0);
  ratios.Observe(10, 20);
  RatioCounts twice = ratios.Read();
  twice.Add(ratios.Read());
  EXPECT_EQ(twice.sum, 4);
}

}  // namespace
}  // namespace ckv
