// Goal: a fleet's constants are those of its sources, its requests are the same for a seed, and
// each value out of range is named.

#include "client/simulate/fleet_spec.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/simulate/fleet_fixture.h"

namespace ckv {
namespace {

TEST(FleetSpec, TheGpuHasTheCostsOfItsSources) {
  const FleetSpec spec = test::SmallFleet(FleetPolicy::kAuto);
  // 16 query rows wait for memory: 2,048 rows of 1,152 bytes at 3 TB/s, and 15 us.
  EXPECT_NEAR(spec.costs.compute.Us(16, 2048), 15 + 2048 * 1152 / 3e6, 1e-9);
  // 128 compute: 128 x 2 x 1,088 FLOP for each row at 660 TFLOP/s.
  EXPECT_NEAR(spec.costs.compute.Us(128, 2048), 15 + 2048.0 * 128 * 2176 / 660e6, 1e-9);
}

TEST(FleetSpec, RequestsAreThoseOfTheSeedAndTheLoad) {
  FleetSpec spec = test::SmallFleet(FleetPolicy::kAuto, 0.5, 7);
  spec.requests_per_requester = 500;
  const std::vector<FleetRequest> slow = MakeFleetRequests(spec);
  spec.load = 1;
  const std::vector<FleetRequest> fast = MakeFleetRequests(spec);
  ASSERT_EQ(slow.size(), 4000u);
  double steps = 0;
  std::set<uint32_t> documents;
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_NEAR(slow[i].arrival_s, 2 * fast[i].arrival_s, 1e-9) << i;
    ASSERT_EQ(slow[i].document, fast[i].document);
    ASSERT_EQ(slow[i].steps, fast[i].steps);
    steps += slow[i].steps;
    documents.insert(slow[i].document);
  }
  EXPECT_NEAR(fast.back().arrival_s * FleetRequestsPerS(spec, fast), 4000, 250);
  EXPECT_EQ(documents.size(), spec.document_count());
  EXPECT_NEAR(steps / 4000, 20.35, 0.1) << "the mean of 400^(u^4)";
  spec.seed = 8;
  EXPECT_NE(MakeFleetRequests(spec)[0].arrival_s, fast[0].arrival_s);
}

TEST(FleetSpec, CopiesAreInOtherRacks) {
  const FleetSpec spec = test::SmallFleet(FleetPolicy::kAuto);
  const FleetPlacement placement = PlaceFleet(spec).value();
  ASSERT_EQ(placement.group_of_chunk.size(), size_t{8} * 4 * 8);
  for (const std::vector<uint32_t>& holders : placement.holders_of_group) {
    ASSERT_EQ(holders.size(), 2u);
    EXPECT_NE(holders[0] / 4, holders[1] / 4);
  }
  for (const auto& groups : placement.groups_of_document) {
    size_t chunks = 0;
    for (const auto& group : groups) chunks += group.chunks.size();
    EXPECT_EQ(chunks, spec.document_chunks);
  }
}

TEST(FleetSpec, EachValueOutOfRangeIsNamed) {
  const auto refused = [](auto change) {
    FleetSpec spec = test::SmallFleet(FleetPolicy::kFetch);
    change(spec);
    return std::string(ValidateFleet(spec).message());
  };
  EXPECT_EQ(refused([](FleetSpec&) {}), "");
  EXPECT_EQ(refused([](FleetSpec& spec) { spec.replicas = 9; }), "replicas: 9, must be 1 to 8");
  EXPECT_EQ(refused([](FleetSpec& spec) { spec.holders = 8; }), "holders: 8, must be 0 to 7");
  EXPECT_EQ(refused([](FleetSpec& spec) { spec.load = 0; }), "load: 0, must be 1e-06 to 1e+06");
  EXPECT_EQ(refused([](FleetSpec& spec) { spec.cache_bytes = 1; }),
            "cache_bytes: 1, but a document has 509607936. Give more, or use the policies route "
            "and auto");
  EXPECT_EQ(refused([](FleetSpec& spec) { spec.policy = FleetPolicy::kLocal; }),
            "local: the cost of prefill is not given");
  EXPECT_EQ(refused([](FleetSpec& spec) { spec.costs.compute = {}; }),
            "costs: no kernel curve, of a holder or of a requester");
}

}  // namespace
}  // namespace ckv
