// Goal: requests come to the requester that has their rows, or the least load; equal ones take
// turns.

#include "client/simulate/fleet_placer.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/simulate/fleet_fixture.h"

namespace ckv {
namespace {

TEST(FleetPlacer, RowsAndLoadsDecideAndEqualsTakeTurns) {
  const FleetSpec spec = test::SmallFleet(FleetPolicy::kAuto);
  const FleetPlacement placement = PlaceFleet(spec).value();
  const FabricTree tree = FabricTree::Create(FabricOf(spec)).value();
  FleetPlacer placer(&spec, &tree, &placement);
  std::vector<FleetLoad> loads(8);
  std::set<uint32_t> chosen;
  for (int i = 0; i < 8; ++i) chosen.insert(placer.Place(3, loads));
  EXPECT_EQ(chosen.size(), 8u);
  for (uint32_t node = 0; node < 8; ++node) loads[node].running = node == 5 ? 1 : 2;
  EXPECT_EQ(placer.Place(3, loads), 5u);
  // Half of the document saves 10 ms of transfer, more than two contexts delay a step.
  for (uint32_t chunk = 24; chunk < 28; ++chunk) placer.Changed(2, chunk, true);
  EXPECT_EQ(placer.Place(3, loads), 2u);
  EXPECT_EQ(placer.Place(4, loads), 5u) << "rows of another document";
  for (uint32_t chunk = 24; chunk < 28; ++chunk) placer.Changed(2, chunk, false);
  EXPECT_EQ(placer.Place(3, loads), 5u);
}

}  // namespace
}  // namespace ckv
