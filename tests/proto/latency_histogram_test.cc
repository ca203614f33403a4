#include "proto/base/latency_histogram.h"

#include <gtest/gtest.h>

namespace ckv {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

TEST(LatencyHistogram, ABucketHoldsItsBound) {
  for (size_t i = 0; i + 1 < LatencyCounts::kBucketCount; ++i) {
    EXPECT_EQ(LatencyCounts::BucketOf(LatencyCounts::Bound(i)), i);
    EXPECT_EQ(LatencyCounts::BucketOf(LatencyCounts::Bound(i) + nanoseconds(1)), i + 1);
  }
  EXPECT_EQ(LatencyCounts::BucketOf(nanoseconds(0)), 0u);
  EXPECT_EQ(LatencyCounts::BucketOf(nanoseconds(-5)), 0u);
  EXPECT_EQ(LatencyCounts::BucketOf(Duration::max()), LatencyCounts::kBucketCount - 1);
}

TEST(LatencyHistogram, BothWaysOfAddingCountAlike) {
  LatencyHistogram shared, alone;
  LatencyCounts plain;
  for (int64_t ns = -1; ns < 10'000'000; ns = ns * 3 + 7) {
    shared.Add(nanoseconds(ns));
    alone.AddAlone(nanoseconds(ns));
    plain.Add(nanoseconds(ns));
  }
  for (const LatencyCounts& counts : {shared.Read(), alone.Read()}) {
    EXPECT_EQ(counts.counts, plain.counts);
    EXPECT_EQ(counts.sum_ns, plain.sum_ns);
  }
}

TEST(LatencyHistogram, QuantilesAreWithinTheirBucket) {
  LatencyCounts counts;
  EXPECT_EQ(counts.Quantile(0.5), Duration(0));
  for (int i = 0; i < 99; ++i) counts.Add(microseconds(100));
  counts.Add(microseconds(3000));
  EXPECT_EQ(counts.total(), 100u);
  EXPECT_GT(counts.Quantile(0.5), microseconds(64));
  EXPECT_LE(counts.Quantile(0.99), microseconds(128));
  EXPECT_GT(counts.Quantile(1), microseconds(2048));
  EXPECT_LE(counts.Quantile(1), microseconds(4096));
  LatencyCounts long_ones;
  long_ones.Add(std::chrono::hours(1));
  EXPECT_EQ(long_ones.Quantile(0.5), LatencyCounts::Bound(LatencyCounts::kBucketCount - 2));
}

}  // namespace
}  // namespace ckv
