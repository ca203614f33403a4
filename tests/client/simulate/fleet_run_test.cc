// Goal: a fleet's run takes the time of its parts and loses no byte, repeats from its seed, and
// auto is what its options leave: route without a cache, and Decide's choice where one is clear.

#include "client/simulate/fleet_run.h"

#include <vector>

#include "client/simulate/fleet_view.h"
#include "gtest/gtest.h"
#include "tests/client/simulate/fleet_fixture.h"

namespace ckv {
namespace {

FleetStats StatsOf(const FleetSpec& spec) {
  return RunFleet(spec, MakeFleetRequests(spec), nullptr, [] {}).value();
}

TEST(FleetRun, OneRoutedRequestTakesTheTimeOfItsParts) {
  FleetSpec spec = test::SmallFleet(FleetPolicy::kRoute);
  spec.nodes = 3;
  spec.holders = 1;
  spec.replicas = 1;
  spec.warmup_share = 0;
  uint32_t done = 0;
  const FleetStats stats =
      RunFleet(spec, {{.arrival_s = 1, .document = 0, .steps = 10}}, nullptr, [&] {
        ++done;
      }).value();
  EXPECT_EQ(done, 1u);
  const double round_us =
      16 + 16 * 25.0 / 1024 + 16 * (1152.0 + 1032) / 25e9 * 1e6 + spec.costs.compute.Us(16, 16384);
  EXPECT_NEAR(stats.token_ms.mean, 27 * round_us / 1e3, 1e-6);
  EXPECT_NEAR(stats.first_ms.mean, 27 * round_us / 1e3, 1e-6);
  EXPECT_NEAR(stats.latency_ms.mean, 270 * round_us / 1e3, 1e-5);
  EXPECT_EQ(stats.routed_bytes, 10.0 * 27 * 16 * (1152 + 1032));
  EXPECT_EQ(stats.fetched_bytes, 0);
}

TEST(FleetRun, OneFetchedRequestTakesTheTimeOfItsParts) {
  FleetSpec spec = test::SmallFleet(FleetPolicy::kFetch);
  spec.nodes = 3;
  spec.holders = 1;
  spec.replicas = 1;
  spec.warmup_share = 0;
  const FleetStats stats =
      RunFleet(spec, {{.arrival_s = 1, .document = 0, .steps = 10}}, nullptr, [] {}).value();
  const double step_us = 27 * spec.costs.here.attend.Us(16, 16384);
  const double fetch_us = 8.0 * static_cast<double>(spec.chunk_bytes()) / 25e9 * 1e6;
  EXPECT_NEAR(stats.token_ms.mean, step_us / 1e3, 1e-5);
  EXPECT_NEAR(stats.first_ms.mean, (fetch_us + step_us) / 1e3, 1e-5);
  EXPECT_EQ(stats.copies, 8u);
  EXPECT_EQ(stats.cached_share, 1);
  spec.policy = FleetPolicy::kLocal;
  spec.costs.here.prefill_per_token_layer_us = 1;
  const FleetStats local =
      RunFleet(spec, {{.arrival_s = 1, .document = 0, .steps = 10}}, nullptr, [] {}).value();
  EXPECT_NEAR(local.first_ms.mean, (16384.0 * 27 + step_us) / 1e3, 1e-4);
  EXPECT_EQ(local.recomputed_tokens, 16384u);
  EXPECT_EQ(local.link_bytes, 0);
}

TEST(FleetRun, EveryByteIsOnTheLinksOfBothEnds) {
  for (const FleetPolicy policy : {FleetPolicy::kRoute, FleetPolicy::kFetch, FleetPolicy::kAuto}) {
    const FleetStats stats = StatsOf(test::SmallFleet(policy, 2));
    // A copy that is under way when the last context ends has not arrived.
    const double sent = 2 * (stats.routed_bytes + stats.fetched_bytes);
    EXPECT_LE(stats.link_bytes, sent);
    EXPECT_NEAR(stats.link_bytes, sent, 4e9) << FleetPolicyName(policy);
    if (policy == FleetPolicy::kRoute) {
      EXPECT_EQ(stats.link_bytes, sent);
    }
  }
}

TEST(FleetRun, TheSameSeedIsTheSameRun) {
  const FleetStats first = StatsOf(test::SmallFleet(FleetPolicy::kAuto, 1.5, 3));
  const FleetStats again = StatsOf(test::SmallFleet(FleetPolicy::kAuto, 1.5, 3));
  const FleetStats other = StatsOf(test::SmallFleet(FleetPolicy::kAuto, 1.5, 4));
  EXPECT_EQ(first.latency_ms.mean, again.latency_ms.mean);
  EXPECT_EQ(first.token_ms.p99, again.token_ms.p99);
  EXPECT_EQ(first.events, again.events);
  EXPECT_EQ(first.fetched_bytes, again.fetched_bytes);
  EXPECT_NE(first.latency_ms.mean, other.latency_ms.mean);
}

TEST(FleetRun, MoreLoadIsNeverFasterForAStaticPolicy) {
  for (const FleetPolicy policy : {FleetPolicy::kRoute, FleetPolicy::kFetch}) {
    double before = 0;
    for (const double load : {0.25, 1.0, 4.0, 16.0}) {
      double mean = 0;
      for (uint64_t seed = 1; seed <= 5; ++seed)
        mean += StatsOf(test::SmallFleet(policy, load, seed)).latency_ms.mean / 5;
      EXPECT_GT(mean, before) << FleetPolicyName(policy) << " at " << load;
      before = mean;
    }
  }
}

TEST(FleetRun, AutoWithoutACacheIsRoute) {
  FleetSpec spec = test::SmallFleet(FleetPolicy::kAuto, 1.5);
  spec.cache_bytes = 0;
  const FleetStats automatic = StatsOf(spec);
  spec.policy = FleetPolicy::kRoute;
  const FleetStats route = StatsOf(spec);
  EXPECT_EQ(automatic.latency_ms.mean, route.latency_ms.mean);
  EXPECT_EQ(automatic.token_ms.p99, route.token_ms.p99);
  EXPECT_EQ(automatic.routed_bytes, route.routed_bytes);
}

TEST(FleetRun, AutoFollowsDecideIfOneChoiceIsClear) {
  // A fast network: a fetch costs nothing, and each routed round has its probe.
  FleetSpec spec = test::SmallFleet(FleetPolicy::kAuto, 0.5);
  spec.costs.nic_bytes_per_s = 1e15;
  spec.warmup_share = 0;
  const FleetPlacement placement = PlaceFleet(spec).value();
  FleetView view(&spec, &placement, 7);
  view.CostOf(placement.groups_of_document[0], 0);
  EXPECT_EQ(Decide(view.input()).choice, Primitive::kFetch);
  EXPECT_GT(StatsOf(spec).cached_share + StatsOf(spec).own_share, 0.9);
  // Slow kernels here: fetched rows do not pay, however often they are used.
  spec.costs.here.attend.base_us = 1000;
  FleetView slow(&spec, &placement, 7);
  slow.CostOf(placement.groups_of_document[0], 0);
  EXPECT_EQ(Decide(slow.input()).choice, Primitive::kRoute);
  EXPECT_EQ(StatsOf(spec).cached_share, 0);
}

TEST(FleetRun, ATreeOfAnotherSizeIsRefused) {
  const FleetSpec spec = test::SmallFleet(FleetPolicy::kRoute);
  FleetSpec other = spec;
  other.nodes = 9;
  const FabricTree tree = FabricTree::Create(FabricOf(other)).value();
  EXPECT_EQ(RunFleet(spec, MakeFleetRequests(spec), &tree, [] {}).status().message(),
            "servers: 9, but the fleet has 8 nodes");
  std::vector<float> none;
  EXPECT_EQ(QuantilesOf(none).mean, 0);
}

}  // namespace
}  // namespace ckv
