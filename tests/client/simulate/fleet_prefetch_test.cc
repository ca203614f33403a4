// Goal: chunks are copied when routing has lost enough, a full cache evicts, and held chunks stay.

#include "client/simulate/fleet_prefetch.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/client/simulate/fleet_fixture.h"

namespace ckv {
namespace {

struct Requester {
  explicit Requester(FleetPolicy policy, uint64_t cache_chunks = 100) {
    spec = test::SmallFleet(policy);
    spec.cache_bytes = cache_chunks * spec.chunk_bytes();
    placement = PlaceFleet(spec).value();
  }
  FleetSpec spec;
  FleetPlacement placement;
  FleetView view{&spec, &placement, 0};
};

// Ends all copies that can begin, and returns how many there were.
int CopyAll(FleetPrefetch& prefetch, double now_s) {
  int count = 0;
  while (const auto copy = prefetch.NextCopy(now_s)) {
    prefetch.EndCopy(*copy, now_s);
    ++count;
  }
  return count;
}

TEST(FleetPrefetch, AChunkIsPrefetchedOnceRoutingHasLostItsPrice) {
  Requester at(FleetPolicy::kAuto);
  FleetPrefetch prefetch(&at.spec, &at.placement, &at.view);
  FleetWatch watch;
  watch.chunks = {0, 1};
  // A step loses 100 us, and two chunks cost 1,000: factor 1 prefetches after ten steps.
  const FleetStepCost cost = {
      .known = true, .route_us = 300, .cached_us = 200, .prefetch_us = 1000, .prefill_us = {}};
  prefetch.Update(watch, 0, cost, 1);
  for (int step = 1; step <= 9; ++step) prefetch.Update(watch, 1, cost, 1 + 0.001 * step);
  EXPECT_FALSE(prefetch.NextCopy(1.01));
  prefetch.Update(watch, 1, cost, 1.01);
  EXPECT_EQ(CopyAll(prefetch, 1.01), 2);
  EXPECT_TRUE(prefetch.AllCached(watch.chunks));
  EXPECT_EQ(prefetch.changes().size(), 2u);
  prefetch.Close(watch);
  EXPECT_TRUE(prefetch.IsCached(0)) << "cached chunks stay";
}

TEST(FleetPrefetch, RoutingThatIsCheaperNeverPrefetches) {
  Requester at(FleetPolicy::kAuto);
  FleetPrefetch prefetch(&at.spec, &at.placement, &at.view);
  FleetWatch watch;
  watch.chunks = {0};
  const FleetStepCost cost = {
      .known = true, .route_us = 200, .cached_us = 300, .prefetch_us = 1, .prefill_us = {}};
  prefetch.Update(watch, 0, cost, 1);
  for (int step = 0; step < 1000; ++step) prefetch.Update(watch, 1, cost, 1);
  EXPECT_FALSE(prefetch.NextCopy(1));
  EXPECT_FALSE(watch.cached_pays);
}

TEST(FleetPrefetch, HeldChunksStayAndTheOldestOtherIsEvicted) {
  Requester at(FleetPolicy::kFetch, /*cache_chunks=*/4);
  FleetPrefetch prefetch(&at.spec, &at.placement, &at.view);
  const std::vector<uint32_t> a = {0, 1}, b = {2, 3}, c = {4, 5};
  ASSERT_TRUE(prefetch.Hold(a, 1));
  ASSERT_TRUE(prefetch.Hold(b, 2));
  EXPECT_FALSE(prefetch.Hold(c, 3)) << "all room is held";
  EXPECT_EQ(CopyAll(prefetch, 3), 4);
  prefetch.Release(b, 4);
  ASSERT_TRUE(prefetch.Hold(c, 5));
  EXPECT_EQ(CopyAll(prefetch, 5), 2);
  EXPECT_TRUE(prefetch.AllCached(a));
  EXPECT_TRUE(prefetch.AllCached(c));
  EXPECT_FALSE(prefetch.IsCached(2));
  EXPECT_EQ(prefetch.evictions(), 2u);
}

}  // namespace
}  // namespace ckv
