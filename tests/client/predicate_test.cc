// Goal: the closed forms give the paper's numbers, and hold for any input.
// Constants are those of facts.md: T_probe 16 us and 25 GB/s, pull 2.5 ms and splice 2.91 ms a
// 2048-token chunk of 27 layers, 15-37 us of compute at decode, merge at most 25 us.

#include "client/predicate.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace ckv {
namespace {

constexpr size_t kRoute = 0, kFetch = 1, kLocal = 2;

Geometry Named(std::string_view name) {
  auto geometry = NamedGeometry(name);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  geometry->revision = "r";
  return *geometry;
}

DecisionInput PaperInput(std::string_view model, uint32_t query_rows) {
  DecisionInput input;
  input.geometry = Named(model);
  input.tokens = 2048;
  input.query_rows = query_rows;
  input.cache_room_tokens = 1 << 20;
  input.fabric = FabricConstants{16, 25e9};
  // 17.8 us at 16 rows, 37 us at 128.
  input.holder_compute = {15, 22.0 / (128 * 2048)};
  input.here.merge_per_row_us = 0.1;
  input.here.splice_per_token_layer_us = 2910.0 / (2048 * 27);
  return input;
}

// Only what the formula of section 4 has: probe and transfer.
DecisionInput BareInput(uint32_t query_rows) {
  DecisionInput input = PaperInput("deepseek-v2-lite", query_rows);
  input.geometry.layers = 1;
  input.holder_compute = {};
  input.here = {};
  return input;
}

void ExpectWithinOnePercent(double got, double want) { EXPECT_NEAR(got, want, want / 100); }

TEST(Predicate, BytesOfARowAreThePapers) {
  const Geometry geometry = Named("deepseek-v2-lite");
  EXPECT_EQ(geometry.query_row_bytes() + geometry.partial_row_bytes(false), 2184u);
  EXPECT_EQ(Decide(BareInput(1)).route_bytes, 2184u);
}

TEST(Predicate, RouteTimesAreThePapers) {
  ExpectWithinOnePercent(Decide(BareInput(1024)).costs[kRoute].total_us, 105.5);
  ExpectWithinOnePercent(Decide(BareInput(128)).costs[kRoute].total_us, 27.18);
}

TEST(Predicate, PullTimesAreThePapers) {
  DecisionInput input = BareInput(16);
  input.geometry.layers = 27;
  ExpectWithinOnePercent(Decide(input).costs[kFetch].transfer_us, 63.7e6 / 25e9 * 1e6);
}

TEST(Predicate, BreakEvenRowsAreThePapers) {
  const Geometry geometry = Named("deepseek-v2-lite");
  EXPECT_EQ(BreakEvenQueryRows(geometry, 2048, false), 1080u);
  EXPECT_EQ(BreakEvenQueryRows(geometry, 512, false), 270u);
}

TEST(Predicate, RoutingMoves76PercentFewerBytesAt256Rows) {
  const Decision decision = Decide(BareInput(256));
  const double saved = 1 - double(decision.route_bytes) / double(decision.fetch_bytes);
  EXPECT_NEAR(saved, 0.76, 0.01);
}

TEST(Predicate, ALoneAgentAmortisesAFetch) {
  const auto lite = BreakEvenSteps(PaperInput("deepseek-v2-lite", 16));
  ASSERT_TRUE(lite.has_value());
  EXPECT_EQ(*lite, 6u);
  const auto v3 = BreakEvenSteps(PaperInput("deepseek-v3", 128));
  ASSERT_TRUE(v3.has_value());
  EXPECT_EQ(*v3, 3u);
}

// The break-even is where Decide changes its mind, not merely near it.
TEST(Predicate, BreakEvenStepsIsWhereTheChoiceFlips) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  const uint32_t steps = *BreakEvenSteps(input);
  input.steps = steps - 1;
  EXPECT_EQ(Decide(input).choice, Primitive::kRoute);
  input.steps = steps;
  EXPECT_EQ(Decide(input).choice, Primitive::kFetch);
  EXPECT_EQ(Decide(input).runner_up, Primitive::kRoute);
}

TEST(Predicate, FetchNeverPaysWhereAttendingHereCostsMore) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.here.attend_per_row_token_us = 1;
  EXPECT_FALSE(BreakEvenSteps(input).has_value());
}

TEST(Predicate, LocalIsTheChoiceForShortChunks) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.steps = 1000;
  input.here.prefill_per_token_layer_us = 0.5;
  // The splice's fixed part is what makes a short fetch dear; here it is per token, so take it
  // high.
  input.here.splice_per_token_layer_us = 2;
  EXPECT_EQ(Decide(input).choice, Primitive::kLocal);
  input.here.prefill_per_token_layer_us = 5;
  EXPECT_EQ(Decide(input).choice, Primitive::kFetch);
}

TEST(Predicate, WhatIsNotOfferedSaysWhy) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.fabric.reset();
  input.cache_room_tokens = 0;
  const Decision decision = Decide(input);
  EXPECT_FALSE(decision.choice.has_value());
  EXPECT_FALSE(decision.runner_up.has_value());
  for (const CostBreakdown& cost : decision.costs) {
    EXPECT_FALSE(cost.offered);
    EXPECT_STRNE(cost.why_not, "");
  }
  EXPECT_NE(DescribeDecision(decision, input).find("no holder reachable"), std::string::npos);
}

TEST(Predicate, AChunkLargerThanTheRoomIsRouted) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.steps = 1000;
  ASSERT_EQ(Decide(input).choice, Primitive::kFetch);
  input.cache_room_tokens = 2047;
  EXPECT_EQ(Decide(input).choice, Primitive::kRoute);
  EXPECT_FALSE(Decide(input).costs[kFetch].offered);
}

TEST(Predicate, ASelectionIsFetchedAnewEveryStep) {
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
}

TEST(Predicate, TiesBreakInTheOrderOfThePrimitives) {
  DecisionInput input;
  input.geometry = Named("deepseek-v2-lite");
  input.tokens = 0;
  input.query_rows = 0;
  input.cache_room_tokens = 1;
  input.fabric = FabricConstants{0, 1};
  input.here.prefill_per_token_layer_us = 0;
  const Decision decision = Decide(input);
  EXPECT_EQ(decision.choice, Primitive::kRoute);
  EXPECT_EQ(decision.runner_up, Primitive::kFetch);
}

TEST(Predicate, InFlightRequestsDivideTheBandwidth) {
  DecisionInput input = BareInput(1024);
  const double alone = Decide(input).costs[kRoute].transfer_us;
  input.in_flight = 3;
  EXPECT_NEAR(Decide(input).costs[kRoute].transfer_us, 4 * alone, 1e-6);
}

DecisionInput RandomInput(std::mt19937& rng) {
  std::uniform_real_distribution<double> log_scale(-3, 6);
  const auto any = [&] { return std::pow(10, log_scale(rng)); };
  DecisionInput input = PaperInput(rng() % 2 ? "deepseek-v2-lite" : "deepseek-v3", rng() % 70000);
  input.tokens = rng() % (1 << 20);
  input.selected = rng() % 3 == 0 ? rng() % 4096 : 0;
  input.steps = 1 + rng() % 1000;
  input.agents = 1 + rng() % 64;
  input.f32_partials = rng() % 2;
  input.cache_room_tokens = rng() % (1 << 21);
  input.fabric = FabricConstants{any(), any() * 1e6};
  input.holder_compute = {any(), any() * 1e-5};
  input.here.merge_per_row_us = any() * 1e-3;
  input.here.splice_per_token_layer_us = any() * 1e-3;
  input.here.attend_per_row_token_us = any() * 1e-5;
  if (rng() % 2) input.here.prefill_per_token_layer_us = any();
  input.in_flight = rng() % 10;
  input.queue_us = any();
  return input;
}

// Every cost rises (or stays) when any one input that makes work or makes it dearer rises.
TEST(Predicate, CostsAreMonotoneInEveryInput) {
  using Change = void (*)(DecisionInput&);
  const std::vector<Change> dearer = {
      [](DecisionInput& in) { in.tokens += 1000, in.cache_room_tokens += 1000; },
      [](DecisionInput& in) {
        if (in.selected) in.selected += 100;
      },
      [](DecisionInput& in) { in.query_rows += 16; },
      [](DecisionInput& in) { ++in.steps; },
      [](DecisionInput& in) { ++in.agents; },
      [](DecisionInput& in) { in.f32_partials = true; },
      [](DecisionInput& in) { in.fabric->t_probe_us *= 2; },
      [](DecisionInput& in) { in.fabric->bandwidth_bytes_per_s /= 2; },
      [](DecisionInput& in) { in.holder_compute.base_us *= 2; },
      [](DecisionInput& in) { in.holder_compute.per_row_token_us *= 2; },
      [](DecisionInput& in) { in.here.merge_per_row_us *= 2; },
      [](DecisionInput& in) { in.here.splice_per_token_layer_us *= 2; },
      [](DecisionInput& in) { in.here.attend_per_row_token_us *= 2; },
      [](DecisionInput& in) { in.in_flight += 1; },
      [](DecisionInput& in) { in.queue_us += 10; },
  };
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const DecisionInput input = RandomInput(rng);
    const Decision before = Decide(input);
    for (size_t change = 0; change < dearer.size(); ++change) {
      DecisionInput changed = input;
      dearer[change](changed);
      const Decision after = Decide(changed);
      for (size_t p = 0; p < kPrimitiveCount; ++p) {
        if (!before.costs[p].offered || !after.costs[p].offered) continue;
        EXPECT_GE(after.costs[p].total_us, before.costs[p].total_us * (1 - 1e-12))
            << "change " << change << " primitive " << p;
      }
    }
  }
}

// Whatever comes in, the choice is the offered one of least cost and the terms add up.
TEST(Predicate, TotalOnAnyInput) {
  const double odd[] = {0,
                        -1,
                        1e300,
                        std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(),
                        std::nan("")};
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    DecisionInput input = RandomInput(rng);
    const auto maybe = [&](double& value) {
      if (rng() % 3 == 0) value = odd[rng() % 6];
    };
    maybe(input.fabric->t_probe_us);
    maybe(input.fabric->bandwidth_bytes_per_s);
    maybe(input.holder_compute.base_us);
    maybe(input.holder_compute.per_row_token_us);
    maybe(input.here.merge_per_row_us);
    maybe(input.here.splice_per_token_layer_us);
    maybe(input.here.attend_per_row_token_us);
    if (input.here.prefill_per_token_layer_us) maybe(*input.here.prefill_per_token_layer_us);
    maybe(input.in_flight);
    maybe(input.queue_us);
    if (rng() % 4 == 0) input.steps = 0;
    if (rng() % 4 == 0) input.geometry.layers = 0;
    if (rng() % 8 == 0) input.tokens = std::numeric_limits<uint64_t>::max();
    if (rng() % 8 == 0) input.fabric.reset();
    const Decision decision = Decide(input);
    double least = std::numeric_limits<double>::infinity();
    bool any = false;
    for (const CostBreakdown& cost : decision.costs) {
      ASSERT_FALSE(std::isnan(cost.total_us));
      ASSERT_GE(cost.total_us, 0);
      if (!cost.offered) continue;
      any = true;
      least = std::min(least, cost.total_us);
    }
    ASSERT_EQ(decision.choice.has_value(), any);
    if (any) {
      ASSERT_EQ(decision.costs[size_t(*decision.choice)].total_us, least);
    }
    (void)BreakEvenSteps(input);
    EXPECT_EQ(DescribeDecision(decision, input).find('\n'), std::string::npos);
  }
}

TEST(Predicate, TheDescriptionIsOneLineWithBothCosts) {
  const DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  const std::string text = DescribeDecision(Decide(input), input);
  EXPECT_EQ(text.find("route: "), 0u) << text;
  EXPECT_NE(text.find("against fetch "), std::string::npos) << text;
  EXPECT_NE(text.find("fetch from 6 steps on"), std::string::npos) << text;
}

}  // namespace
}  // namespace ckv
