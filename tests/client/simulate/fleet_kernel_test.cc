// Goal: a batch takes the time that the product's curve gives, reads a shared chunk once, and mixes
// no requests of two processes.

#include "client/simulate/fleet_kernel.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

ComputeCurve Curve() {
  ComputeCurve curve;
  curve.base_us = 10;
  curve.per_row_us = 0.5;
  curve.anchor_count = 2;
  curve.anchors[0] = {16, 0.01};
  curve.anchors[1] = {64, 0.04};
  curve.floor.us_per_token = 0.02;
  return curve;
}

double UsOf(const std::vector<KernelWork>& batch) {
  std::vector<std::pair<uint32_t, double>> scratch;
  std::vector<SharedRun> runs;
  ListRuns(batch, 100, scratch, runs);
  double rows = 0;
  for (const KernelWork& work : batch) rows += work.query_rows;
  return BatchUs(Curve(), rows, runs);
}

TEST(FleetKernel, OneRequestTakesTheTimeOfTheCurve) {
  const std::vector<uint32_t> chunks = {3, 4};
  const KernelWork work = {16, chunks};
  EXPECT_DOUBLE_EQ(UsOf({work}), Curve().Us(16, 200));
}

TEST(FleetKernel, ASharedChunkIsReadOnce) {
  const std::vector<uint32_t> first = {3, 4}, other = {5, 6};
  const std::vector<KernelWork> same = {{16, first}, {16, first}},
                                apart = {{16, first}, {16, other}};
  // 32 rows compute as long as the floor takes, so the second request costs its rows alone.
  EXPECT_DOUBLE_EQ(UsOf(same), 10 + 32 * 0.5 + 2 * 100 * 0.02);
  EXPECT_DOUBLE_EQ(UsOf(apart), 10 + 32 * 0.5 + 4 * 100 * 0.02);
}

TEST(FleetKernel, BatchesAreOfOneKindAndBounded) {
  FleetKernel kernel(1);
  for (uint32_t i = 0; i < FleetKernel::kBatchMax + 6; ++i)
    kernel.Add({.visit = i, .own = i % 10 == 3});
  std::vector<FleetKernel::Job> batch;
  ASSERT_TRUE(kernel.Begin(batch));
  EXPECT_EQ(batch.size(), 63u) << "all that are not own";
  EXPECT_FALSE(kernel.Begin(batch)) << "the one worker is busy";
  kernel.End(0.5);
  ASSERT_TRUE(kernel.Begin(batch));
  EXPECT_EQ(batch.size(), 7u);
  EXPECT_EQ(batch.front().visit, 3u);
  kernel.End(0.25);
  EXPECT_EQ(kernel.waiting(), 0u);
  EXPECT_EQ(kernel.busy_s(), 0.75);
}

}  // namespace
}  // namespace ckv
