// Goal: the decision follows its costs, and its costs follow their inputs, for any input.
// Method: properties over random inputs, each with its seed; a failure prints the seed that repeats
// it. The paper's own numbers are in paper_figures_test.cc.

#include "client/cost/predicate.h"

#include <functional>
#include <random>

#include "gtest/gtest.h"
#include "tests/client/cost/predicate_input.h"
#include "tests/support/allocation_count.h"

namespace ckv {
namespace {

using test::AnyScale;
using test::BareInput;
using test::ForAll;
using test::PaperInput;
using test::RandomInput;

constexpr size_t kRoute = 0, kFetch = 1, kLocal = 2;

Candidate Replica(double t_probe_us, double bandwidth, uint32_t group = 0, double share = 1) {
  Candidate candidate;
  candidate.group = group;
  candidate.token_share = share;
  candidate.fabric = FabricConstants{t_probe_us, bandwidth};
  candidate.compute = {1, 1e-5};
  return candidate;
}

TEST(Predicate, LocalIsTheChoiceForShortChunks) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.steps = 1000;
  input.tokens = 50;
  input.here.prefill_per_token_layer_us = 1;
  input.here.splice_per_token_layer_us = 0;
  input.here.splice_per_layer_us = 2770.0 / 27;
  EXPECT_EQ(Decide(input).choice, Primitive::kLocal);
  input.tokens = 500;
  EXPECT_EQ(Decide(input).choice, Primitive::kFetch);
}

TEST(Predicate, GivesTheReasonForEachMissingAlternative) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.candidates.clear();
  input.cache_room_tokens = 0;
  const Decision decision = Decide(input);
  EXPECT_FALSE(decision.choice.has_value());
  EXPECT_FALSE(decision.runner_up.has_value());
  for (const CostBreakdown& cost : decision.costs) {
    EXPECT_FALSE(cost.offered);
    EXPECT_STRNE(cost.why_not, "");
  }
  EXPECT_STREQ(decision.costs[kRoute].why_not, "no holder reachable");
  input.candidates.resize(1);  // neither measured nor in an oracle
  EXPECT_STREQ(Decide(input).costs[kRoute].why_not, "no holder reachable");
  input.candidates[0].fabric = FabricConstants{1, 0};
  EXPECT_STREQ(Decide(input).costs[kFetch].why_not, "bandwidth not measured");
  input.gone_holder = "h1";
  EXPECT_STREQ(Decide(input).costs[kRoute].why_not,
               "a holder is not registered with the directory");
}

TEST(Predicate, AChunkLargerThanTheRoomIsRouted) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.steps = 1000;
  ASSERT_EQ(Decide(input).choice, Primitive::kFetch);
  input.cache_room_tokens = 2047;
  EXPECT_EQ(Decide(input).choice, Primitive::kRoute);
  EXPECT_STREQ(Decide(input).costs[kFetch].why_not, "does not fit the local cache");
}

TEST(Predicate, ChargesEvictionsThatMustHappenFirst) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.cache_room_tokens = 2000;
  input.eviction = Eviction{4096, 10};
  EXPECT_DOUBLE_EQ(Decide(input).costs[kFetch].evict_us, 480);
  input.cache_room_tokens = 0;
  EXPECT_DOUBLE_EQ(Decide(input).costs[kFetch].evict_us, 20480);
  input.cache_room_tokens = 2048;
  EXPECT_EQ(Decide(input).costs[kFetch].evict_us, 0);
  input.cache_room_tokens = 0;
  input.eviction->capacity_tokens = 2047;
  EXPECT_FALSE(Decide(input).costs[kFetch].offered);
}

TEST(Predicate, ASelectionIsFetchedAgainEveryStep) {
  DecisionInput input = PaperInput("deepseek-v3", 128);
  input.tokens = 1 << 20;
  input.selected = 2048;
  const Decision one = Decide(input);
  input.steps = 100;
  const Decision many = Decide(input);
  EXPECT_EQ(one.choice, Primitive::kRoute);
  EXPECT_EQ(many.choice, Primitive::kRoute);
  EXPECT_NEAR(many.costs[kFetch].total_us, 100 * one.costs[kFetch].total_us, 1);
  EXPECT_EQ(one.costs[kFetch].splice_us, 0);
  EXPECT_FALSE(one.costs[kLocal].offered);
  // Compute follows the budget, not the store.
  input.tokens = 1 << 15;
  input.steps = 1;
  EXPECT_EQ(Decide(input).costs[kRoute].total_us, one.costs[kRoute].total_us);
  // The premium of gathering is on the kernel, and only under selection.
  input.candidates[0].compute.gather_factor = 2.5;
  EXPECT_GT(Decide(input).costs[kRoute].compute_us, one.costs[kRoute].compute_us);
  EXPECT_EQ(Decide(input).costs[kRoute].transfer_us, one.costs[kRoute].transfer_us);
  input.selected = 0;
  const double dense_us = Decide(input).costs[kRoute].compute_us;
  input.candidates[0].compute.gather_factor = 1;
  EXPECT_EQ(Decide(input).costs[kRoute].compute_us, dense_us);
}

TEST(Predicate, DoesNotRotateRowsAtTheirOwnPosition) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  EXPECT_GT(Decide(input).costs[kFetch].splice_us, 0);
  // The part of a splice that the transfer hides costs nothing.
  const double whole_us = Decide(input).costs[kFetch].splice_us;
  input.candidates[0].splice_share = 0.25;
  EXPECT_EQ(Decide(input).costs[kFetch].splice_us, 0.25 * whole_us);
  input.candidates[0].splice_share = 7;
  EXPECT_EQ(Decide(input).costs[kFetch].splice_us, whole_us);
  input.canonical = true;
  EXPECT_EQ(Decide(input).costs[kFetch].splice_us, 0);
}

TEST(Predicate, TiesBreakInTheOrderOfThePrimitives) {
  DecisionInput input;
  input.geometry = test::PublishedGeometry("deepseek-v2-lite");
  input.cache_room_tokens = 1;
  input.candidates = {Replica(0, 1)};
  input.candidates[0].compute = {};
  input.here.prefill_per_token_layer_us = 0;
  Decision decision = Decide(input);
  EXPECT_EQ(decision.choice, Primitive::kRoute);
  EXPECT_EQ(decision.runner_up, Primitive::kFetch);
  input.candidates.clear();
  EXPECT_EQ(Decide(input).choice, Primitive::kLocal);
  input.candidates = {Replica(1, 1)};
  decision = Decide(input);
  EXPECT_EQ(decision.choice, Primitive::kFetch);
  EXPECT_EQ(decision.runner_up, Primitive::kLocal);
}

TEST(Predicate, InFlightRequestsDivideTheBandwidth) {
  DecisionInput input = BareInput(1024);
  const double alone = Decide(input).costs[kRoute].transfer_us;
  input.candidates[0].in_flight = 3;
  EXPECT_NEAR(Decide(input).costs[kRoute].transfer_us, 4 * alone, 1e-6);
}

TEST(Predicate, RequestersThatAHolderTakesAlongShareItsKernel) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.geometry.layers = 1;
  const double alone = Decide(input).costs[kRoute].compute_us;
  input.candidates[0].concurrent = 7;
  EXPECT_NEAR(Decide(input).costs[kRoute].compute_us, 15 + 8 * (alone - 15), 1e-9);
  // Until free_row_tokens are used up, they cost nothing.
  input.candidates[0].compute.free_row_tokens = 8.0 * 16 * 2048;
  EXPECT_EQ(Decide(input).costs[kRoute].compute_us, 15);
  // Requests that wait ahead are done before.
  input.candidates[0].queue_requests = 2;
  EXPECT_EQ(Decide(input).costs[kRoute].queue_us, 30);
}

// Each holder attends its own chunks; the slowest determines the time, and each adds a partial.
TEST(Predicate, HoldersOfACallCarryTheirOwnShares) {
  DecisionInput input = BareInput(16);
  input.here.merge_per_row_us = 0.5;
  input.candidates = {Replica(10, 1e9, 0, 0.75), Replica(12, 1e9, 1, 0.25)};
  input.candidates[0].compute = {0, 1e-3};
  input.candidates[1].compute = {0, 2e-3};
  const CostBreakdown route = Decide(input).costs[kRoute];
  // 16 rows x 1536 tokens x 1e-3 us against 16 x 512 x 2e-3.
  EXPECT_EQ(route.candidate, 0u);
  EXPECT_DOUBLE_EQ(route.compute_us, 16 * 1536 * 1e-3);
  EXPECT_EQ(route.probe_us, 10);
  EXPECT_DOUBLE_EQ(route.merge_us, 16 * 2 * 0.5);
  // Rows fetched from both use the same link of the requester.
  const CostBreakdown fetch = Decide(input).costs[kFetch];
  EXPECT_DOUBLE_EQ(fetch.transfer_us, 2048 * 1152 / 1e3);
  // One holder that cannot be queried is enough: an answer covers every chunk.
  input.candidates[1].fabric.reset();
  EXPECT_FALSE(Decide(input).costs[kRoute].offered);
}

TEST(Predicate, TakesTheCheapestReplica) {
  DecisionInput input = BareInput(16);
  input.candidates = {Replica(20, 25e9), Replica(5, 25e9), Replica(5, 25e9), Candidate{}};
  EXPECT_EQ(Decide(input).costs[kRoute].candidate, 1u);
  EXPECT_EQ(Decide(input).costs[kRoute].probe_us, 5);
  input.candidates[1].queue_us = 1000;
  EXPECT_EQ(Decide(input).costs[kRoute].candidate, 2u);
  // The queue of a kernel does not hold up a fetch.
  EXPECT_EQ(Decide(input).costs[kFetch].candidate, 0u);
  std::vector<RankedCandidate> ranked(4);
  ASSERT_EQ(RankCandidates(input, Primitive::kRoute, ranked), 4u);
  EXPECT_EQ(ranked[0].index, 2u);
  EXPECT_EQ(ranked[1].index, 0u);
  EXPECT_EQ(ranked[2].index, 1u);
  EXPECT_EQ(ranked[3].index, 3u);
  EXPECT_STREQ(ranked[3].cost.why_not, "no holder reachable");
  EXPECT_EQ(RankCandidates(input, Primitive::kRoute, std::span(ranked).first(2)), 2u);
}

TEST(Predicate, TheOracleBoundsMeasuredConstants) {
  DecisionInput input = BareInput(1024);
  const double bytes = 1024 * 2184;
  // Nothing is measured yet: the tier's values count, with twice its latency.
  input.candidates[0].fabric.reset();
  input.candidates[0].path = PathCost{2, 10e9, 8, 0.5, 1};
  CostBreakdown route = Decide(input).costs[kRoute];
  EXPECT_EQ(route.probe_us, 16);
  EXPECT_DOUBLE_EQ(route.transfer_us, bytes / 2.5e3);
  // Measured: the measured values count, unless others have taken more of the tier than that
  // leaves.
  input.candidates[0].fabric = FabricConstants{3, 4e9};
  input.candidates[0].path->in_flight = 0;
  route = Decide(input).costs[kRoute];
  EXPECT_EQ(route.probe_us, 3);
  EXPECT_DOUBLE_EQ(route.transfer_us, bytes / 4e3);
  input.candidates[0].path->congestion = 0.8;
  EXPECT_NEAR(Decide(input).costs[kRoute].transfer_us, bytes / 2e3, 1e-6);
  // The counter stops at the flows that fill a network card.
  input.candidates[0].path->in_flight = 16;
  const double full = Decide(input).costs[kRoute].transfer_us;
  input.candidates[0].path->in_flight = 1000;
  EXPECT_EQ(Decide(input).costs[kRoute].transfer_us, full);
}

using Change = std::function<void(DecisionInput&)>;

// Changes that add work or make it more expensive.
std::vector<Change> Dearer() {
  const auto all = [](const std::function<void(Candidate&)>& change) {
    return [change](DecisionInput& in) { ForAll(in, change); };
  };
  return {
      [](DecisionInput& in) { in.tokens += 1000, in.cache_room_tokens += 1000; },
      [](DecisionInput& in) {
        if (in.selected) in.selected += 100;
      },
      [](DecisionInput& in) { in.query_rows += 16; },
      [](DecisionInput& in) { ++in.query_rows; },
      [](DecisionInput& in) { ++in.steps; },
      [](DecisionInput& in) { ++in.agents; },
      [](DecisionInput& in) { in.f32_partials = true; },
      [](DecisionInput& in) { in.canonical = false; },
      [](DecisionInput& in) { in.here.merge_per_row_us *= 2; },
      [](DecisionInput& in) { in.here.splice_per_token_layer_us *= 2; },
      [](DecisionInput& in) { in.here.splice_per_layer_us *= 2; },
      all([](Candidate& c) { c.splice_share = (1 + c.splice_share) / 2; }),
      [](DecisionInput& in) { in.here.attend_per_row_token_us *= 2; },
      [](DecisionInput& in) { in.here.attend_floor.us_per_token += 1e-3; },
      [](DecisionInput& in) {
        if (in.here.prefill_per_token_layer_us) *in.here.prefill_per_token_layer_us *= 2;
      },
      [](DecisionInput& in) { in.cache_room_tokens -= in.cache_room_tokens / 10; },
      [](DecisionInput& in) {
        if (in.eviction) in.eviction->per_token_us *= 2;
      },
      all([](Candidate& c) {
        if (c.fabric) c.fabric->t_probe_us *= 2;
        if (c.path) c.path->latency_us *= 2;
      }),
      all([](Candidate& c) {
        if (c.fabric) c.fabric->bandwidth_bytes_per_s /= 2;
      }),
      all([](Candidate& c) {
        if (c.path) c.path->bandwidth_bytes_per_s /= 2;
      }),
      all([](Candidate& c) {
        if (c.path) c.path->congestion = (1 + c.path->congestion) / 2;
      }),
      all([](Candidate& c) {
        if (c.path) ++c.path->in_flight;
      }),
      all([](Candidate& c) { c.compute.base_us *= 2; }),
      all([](Candidate& c) { c.compute.per_row_token_us *= 2; }),
      all([](Candidate& c) { c.compute.free_row_tokens /= 2; }),
      all([](Candidate& c) {
        for (MemoryFloor* floor : {&c.compute.floor, &c.compute.curve.floor}) {
          floor->us_per_token += 1e-3;
          floor->shown_share = (1 + floor->shown_share) / 2;
        }
      }),
      all([](Candidate& c) { c.compute.live.compute *= 2, c.compute.live.memory *= 3; }),
      all([](Candidate& c) {
        c.compute.gather_factor = std::max(1.0, c.compute.gather_factor) + 1;
      }),
      all([](Candidate& c) { ++c.in_flight; }),
      all([](Candidate& c) { ++c.concurrent; }),
      all([](Candidate& c) { ++c.queue_requests; }),
      all([](Candidate& c) { c.queue_us += 10; }),
  };
}

// Every cost rises (or stays) when any one input rises that adds work or makes it more expensive.
TEST(Predicate, CostsAreMonotoneInEveryInput) {
  const std::vector<Change> dearer = Dearer();
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const DecisionInput input = RandomInput(rng);
    const Decision before = Decide(input);
    for (size_t change = 0; change < dearer.size(); ++change) {
      DecisionInput changed = input;
      dearer[change](changed);
      const Decision after = Decide(changed);
      for (size_t p = 0; p < kPrimitiveCount; ++p) {
        EXPECT_GE(before.costs[p].offered, after.costs[p].offered) << "change " << change;
        if (!before.costs[p].offered || !after.costs[p].offered) continue;
        EXPECT_GE(after.costs[p].total_us, before.costs[p].total_us * (1 - 1e-12))
            << "change " << change << " primitive " << p;
      }
    }
  }
}

// Another replica never makes anything more expensive, and another group never makes it cheaper.
TEST(Predicate, MoreReplicasNeverCostMoreAndMoreHoldersNeverLess) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const DecisionInput input = RandomInput(rng);
    const Decision before = Decide(input);
    DecisionInput replica = input, holder = input;
    for (DecisionInput* more : {&replica, &holder}) {
      more->candidates.push_back(test::RandomCandidate(rng));
      more->candidates.back().group = input.candidates.back().group + (more == &holder ? 1 : 0);
      more->candidates.back().token_share = input.candidates.back().token_share;
    }
    for (const size_t p : {kRoute, kFetch}) {
      const CostBreakdown a = Decide(replica).costs[p], b = Decide(holder).costs[p];
      EXPECT_GE(a.offered, before.costs[p].offered);
      if (before.costs[p].offered) {
        EXPECT_LE(a.total_us, before.costs[p].total_us * (1 + 1e-12));
      }
      EXPECT_LE(b.offered, before.costs[p].offered);
      if (b.offered) {
        EXPECT_GE(b.total_us, before.costs[p].total_us * (1 - 1e-12));
      }
    }
  }
}

// A machine twice as slow in everything takes twice as long for everything, and decides the same.
// A power of two, so that nothing is rounded.
TEST(Predicate, TheUnitOfTimeDecidesNothing) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    DecisionInput input = RandomInput(rng);
    const Decision before = Decide(input);
    constexpr double kSlower = 4;
    for (double* us : {&input.here.merge_per_row_us, &input.here.splice_per_token_layer_us,
                       &input.here.splice_per_layer_us, &input.here.attend_per_row_token_us,
                       &input.here.attend_floor.us_per_token}) {
      *us *= kSlower;
    }
    if (input.here.prefill_per_token_layer_us) *input.here.prefill_per_token_layer_us *= kSlower;
    if (input.eviction) input.eviction->per_token_us *= kSlower;
    ForAll(input, [](Candidate& c) {
      if (c.fabric) {
        c.fabric->t_probe_us *= kSlower;
        c.fabric->bandwidth_bytes_per_s /= kSlower;
      }
      if (c.path) {
        c.path->latency_us *= kSlower;
        c.path->bandwidth_bytes_per_s /= kSlower;
      }
      c.compute.base_us *= kSlower;
      c.compute.per_row_token_us *= kSlower;
      c.compute.floor.us_per_token *= kSlower;
      ComputeCurve& curve = c.compute.curve;
      for (double* us : {&curve.base_us, &curve.per_row_us, &curve.anchors[0].us_per_token,
                         &curve.anchors[1].us_per_token, &curve.floor.us_per_token}) {
        *us *= kSlower;
      }
      c.queue_us *= kSlower;
      c.cold_exchange.fixed_us *= kSlower;
      c.cold_exchange.us_per_byte *= kSlower;
    });
    const Decision after = Decide(input);
    EXPECT_EQ(after.choice, before.choice);
    EXPECT_EQ(after.runner_up, before.runner_up);
    for (size_t p = 0; p < kPrimitiveCount; ++p)
      EXPECT_DOUBLE_EQ(after.costs[p].total_us, kSlower * before.costs[p].total_us);
  }
}

// Steps and agents both multiply how often a layer is requested.
TEST(Predicate, StepsAndAgentsAreTheSame) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    DecisionInput input = RandomInput(rng);
    const Decision before = Decide(input);
    std::swap(input.steps, input.agents);
    const Decision after = Decide(input);
    for (size_t p = 0; p < kPrimitiveCount; ++p)
      EXPECT_EQ(after.costs[p].total_us, before.costs[p].total_us);
  }
}

TEST(Predicate, DecidingAllocatesNothing) {
  std::mt19937 rng(1);
  DecisionInput input = RandomInput(rng);
  for (int i = 0; i < 8; ++i) input.candidates.push_back(test::RandomCandidate(rng));
  std::vector<RankedCandidate> ranked(input.candidates.size());
  const uint64_t before = allocation_count;
  (void)Decide(input);
  (void)RankCandidates(input, Primitive::kRoute, ranked);
  EXPECT_EQ(allocation_count, before);
}

}  // namespace
}  // namespace ckv
