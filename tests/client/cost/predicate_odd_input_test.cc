// Goal: a decision over any input has costs that are numbers or infinity, and chooses the least.
// Method: random inputs of which many values are 0, negative, huge, infinite or NaN.

#include <cmath>
#include <limits>
#include <random>

#include "client/cost/predicate.h"
#include "gtest/gtest.h"
#include "tests/client/cost/predicate_input.h"

namespace ckv {
namespace {

using test::ForAll;
using test::RandomInput;

constexpr double kAnyInfinity = std::numeric_limits<double>::infinity();

void MakeOdd(std::mt19937& rng, DecisionInput& input) {
  const double odd[] = {0, -1, 1e300, kAnyInfinity, -kAnyInfinity, std::nan("")};
  const auto maybe = [&](double& value) {
    if (rng() % 3 == 0) value = odd[rng() % 6];
  };
  ForAll(input, [&](Candidate& c) {
    if (c.fabric) {
      maybe(c.fabric->t_probe_us);
      maybe(c.fabric->bandwidth_bytes_per_s);
    }
    if (c.path) {
      maybe(c.path->bandwidth_bytes_per_s);
      maybe(c.path->latency_us);
      maybe(c.path->congestion);
      maybe(c.path->in_flight);
    }
    for (double* value : {&c.token_share,
                          &c.compute.base_us,
                          &c.compute.per_row_token_us,
                          &c.compute.free_row_tokens,
                          &c.compute.gather_factor,
                          &c.wire_share,
                          &c.burst_bytes,
                          &c.cold_exchange.fixed_us,
                          &c.cold_exchange.us_per_byte,
                          &c.cold_exchange.cache_bytes,
                          &c.splice_share,
                          &c.in_flight,
                          &c.concurrent,
                          &c.queue_us,
                          &c.queue_requests,
                          &c.compute.floor.us_per_token,
                          &c.compute.floor.shown_share,
                          &c.compute.curve.floor.us_per_token,
                          &c.compute.curve.floor.shown_share,
                          &c.compute.curve.anchors[1].us_per_token,
                          &c.compute.live.compute,
                          &c.compute.live.memory}) {
      maybe(*value);
    }
    if (rng() % 8 == 0) c.group = rng();
  });
  for (double* value :
       {&input.here.merge_per_row_us, &input.here.splice_per_token_layer_us,
        &input.here.splice_per_layer_us, &input.here.attend_per_row_token_us,
        &input.here.attend_floor.us_per_token, &input.here.attend_floor.shown_share}) {
    maybe(*value);
  }
  if (input.here.prefill_per_token_layer_us) maybe(*input.here.prefill_per_token_layer_us);
  if (input.eviction) maybe(input.eviction->per_token_us);
  if (rng() % 4 == 0) input.lane_shape.reset();
  if (rng() % 4 == 0) input.lane_shape = LaneShape{1, uint32_t(rng() % 4096), uint32_t(rng())};
  if (rng() % 4 == 0) input.steps = 0;
  if (rng() % 4 == 0) input.geometry.layers = 0;
  if (rng() % 8 == 0) input.tokens = std::numeric_limits<uint64_t>::max();
  if (rng() % 8 == 0) input.candidates.clear();
}

// For any input, the choice is the cheapest offered one.
TEST(Predicate, DecidesOnAnyInput) {
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    DecisionInput input = RandomInput(rng);
    MakeOdd(rng, input);
    const Decision decision = Decide(input);
    double least = kAnyInfinity;
    bool any = false;
    for (const CostBreakdown& cost : decision.costs) {
      ASSERT_FALSE(std::isnan(cost.total_us));
      ASSERT_GE(cost.total_us, 0);
      ASSERT_EQ(cost.offered, cost.why_not[0] == '\0');
      if (!cost.offered) continue;
      any = true;
      least = std::min(least, cost.total_us);
    }
    ASSERT_EQ(decision.choice.has_value(), any);
    if (any) {
      ASSERT_EQ(decision.cost(*decision.choice).total_us, least);
    }
    if (decision.runner_up) {
      ASSERT_TRUE(decision.cost(*decision.runner_up).offered);
    }
    std::vector<RankedCandidate> ranked(input.candidates.size());
    EXPECT_EQ(RankCandidates(input, Primitive::kFetch, ranked), ranked.size());
  }
}

}  // namespace
}  // namespace ckv
