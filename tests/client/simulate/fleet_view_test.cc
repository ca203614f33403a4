// Goal: a simulated requester decides as the product does, on what it has learned.

#include "client/simulate/fleet_view.h"

#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/simulate/fleet_fixture.h"

namespace ckv {
namespace {

class FleetViewTest : public testing::Test {
 protected:
  const FleetSpec spec_ = test::SmallFleet(FleetPolicy::kAuto);
  const FleetPlacement placement_ = PlaceFleet(spec_).value();
  FleetView view_{&spec_, &placement_, 0};
  const FleetPlacement::Group& group_ = placement_.groups_of_document[0][0];
  const std::vector<uint32_t>& holders_ = placement_.holders_of_group[group_.id];
};

TEST_F(FleetViewTest, EqualReplicasTakeTurnsAndABusyOneIsAvoided) {
  std::map<uint32_t, int> turns;
  for (int i = 0; i < 10; ++i) ++turns[view_.ChooseRoute(group_, 0)];
  EXPECT_EQ(turns[holders_[0]], 5);
  EXPECT_EQ(turns[holders_[1]], 5);
  view_.Sent(holders_[0]);
  view_.Replied(holders_[0], 500, 0.01);
  // The ranking is used for 100 ms; then the queue that the reply reported counts.
  for (int i = 0; i < 10; ++i) EXPECT_EQ(view_.ChooseRoute(group_, 0.2), holders_[1]);
  // A report is out of date after a second.
  turns.clear();
  for (int i = 0; i < 10; ++i) ++turns[view_.ChooseRoute(group_, 2)];
  EXPECT_GT(turns[holders_[0]], 0);
}

TEST_F(FleetViewTest, CostsAreThoseOfDecide) {
  const auto& groups = placement_.groups_of_document[0];
  const FleetStepCost cost = view_.CostOf(groups, 0);
  ASSERT_TRUE(cost.known);
  const Decision decision = Decide(view_.input());
  EXPECT_EQ(cost.route_us, decision.cost(Primitive::kRoute).total_us);
  EXPECT_EQ(cost.cached_us, decision.cost(Primitive::kFetch).compute_us);
  EXPECT_NEAR(cost.prefetch_us, 8.0 * static_cast<double>(spec_.chunk_bytes()) / 25e9 * 1e6, 1e-6);
  EXPECT_FALSE(cost.prefill_us);
  // Fetches that arrive at half of the speed cost twice as much.
  for (const auto& group : groups) {
    for (const uint32_t holder : placement_.holders_of_group[group.id])
      view_.Fetched(holder, 12.5e6, 1000);
  }
  EXPECT_NEAR(view_.CostOf(groups, 0).prefetch_us, 2 * cost.prefetch_us, 1e-6);
}

}  // namespace
}  // namespace ckv
