// Goal: what is said to change a decision changes it there, and not before.

#include "client/cost/what_if.h"

#include <cmath>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cost/predicate_input.h"

namespace ckv {
namespace {

using test::PaperInput;
using test::RandomInput;
using testing::HasSubstr;

// The break-even is where Decide changes its mind, not merely near it.
TEST(WhatIf, BreakEvenStepsIsWhereTheChoiceFlips) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  const uint64_t steps = *BreakEvenSteps(input);
  input.steps = static_cast<uint32_t>(steps) - 1;
  EXPECT_EQ(Decide(input).choice, Primitive::kRoute);
  input.steps = static_cast<uint32_t>(steps);
  EXPECT_EQ(Decide(input).choice, Primitive::kFetch);
  EXPECT_EQ(Decide(input).runner_up, Primitive::kRoute);
}

TEST(WhatIf, FetchNeverPaysWhereAttendingHereCostsMore) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.here.attend_per_row_token_us = 1;
  EXPECT_FALSE(BreakEvenSteps(input).has_value());
  EXPECT_THAT(DescribeDecision(Decide(input), input), HasSubstr("fetch at no number of steps"));
}

TEST(WhatIf, BreakEvensOfRowsAndTokens) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.here.prefill_per_token_layer_us = 1;
  for (const Knob knob : {Knob::kQueryRows, Knob::kTokens}) {
    const Primitive loser = knob == Knob::kTokens ? Primitive::kLocal : Primitive::kRoute;
    input.here.splice_per_layer_us = 100;
    input.here.splice_per_token_layer_us = 0;
    const auto value = BreakEven(input, knob, Primitive::kFetch, loser);
    ASSERT_TRUE(value.has_value()) << KnobName(knob);
    const Decision at = Decide(WithKnob(input, knob, double(*value)));
    EXPECT_LT(at.cost(Primitive::kFetch).total_us, at.cost(loser).total_us);
    const Decision below = Decide(WithKnob(input, knob, double(*value - 1)));
    EXPECT_GE(below.cost(Primitive::kFetch).total_us, below.cost(loser).total_us);
  }
  EXPECT_FALSE(BreakEven(input, Knob::kQueue, Primitive::kFetch, Primitive::kRoute).has_value());
}

// Few query rows rest on the holder's floor, and many are computed faster here. From 133 to 226 of
// them routing wins, and halving from above steps over that.
TEST(WhatIf, TheBreakEvenIsTheLastWhereCostsCrossAgain) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.geometry.layers = 1;
  input.lane_shape.reset();
  input.steps = 1 << 20;
  input.tokens = 1000;
  input.here = {};
  input.here.attend_per_row_token_us = 0.01;
  Candidate& holder = input.candidates[0];
  holder.fabric = FabricConstants{0, 2184e6 / 5};  // 5 us a query row
  holder.compute = {};
  holder.compute.curve = {0, 0, 4, {{{1, .05}, {128, .65}, {180, .8}, {250, 1.3}}}, {.1, 0}};
  const auto fetch_wins = [&](double rows) {
    const Decision decision = Decide(WithKnob(input, Knob::kQueryRows, rows));
    return decision.cost(Primitive::kFetch).total_us < decision.cost(Primitive::kRoute).total_us;
  };
  for (const double rows : {1., 16., 128., 256., 1024.}) ASSERT_TRUE(fetch_wins(rows)) << rows;
  ASSERT_FALSE(fetch_wins(180));
  const auto rows = BreakEven(input, Knob::kQueryRows, Primitive::kFetch, Primitive::kRoute);
  EXPECT_EQ(rows, 227u);
  EXPECT_FALSE(fetch_wins(226));
  for (double more = 227; more < 1e6; more *= 1.1) EXPECT_TRUE(fetch_wins(more)) << more;
}

const Flip* FlipOf(const std::vector<Flip>& flips, Knob knob) {
  for (const Flip& flip : flips)
    if (flip.knob == knob) return &flip;
  return nullptr;
}

TEST(WhatIf, FlipsOfThePapersStep) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  const std::vector<Flip> flips = Flips(input);
  const Flip* steps = FlipOf(flips, Knob::kSteps);
  ASSERT_NE(steps, nullptr);
  EXPECT_EQ(steps->to, double(*BreakEvenSteps(input)));
  EXPECT_EQ(steps->choice, Primitive::kFetch);
  EXPECT_EQ(DescribeFlip(*steps), "steps: fetch from 6 on (now 1)");
  // Agents are as good as steps.
  EXPECT_EQ(FlipOf(flips, Knob::kAgents)->to, steps->to);
  EXPECT_EQ(FlipOf(flips, Knob::kCacheRoom), nullptr);  // route needs none
  input.steps = 20;
  input.cache_room_tokens = std::numeric_limits<uint64_t>::max();
  const std::vector<Flip> back = Flips(input);
  EXPECT_EQ(FlipOf(back, Knob::kSteps)->to, steps->to - 1);
  EXPECT_EQ(DescribeFlip(*FlipOf(back, Knob::kCacheRoom)),
            "cache room: route at 2047 and below (now 18446744073709551616)");
}

// Where a flip is named the choice is the named one; just before, the present one still.
TEST(WhatIf, AFlipIsAtTheReportedValue) {
  int found = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const DecisionInput input = RandomInput(rng);
    const auto choice = Decide(input).choice;
    for (const Flip& flip : Flips(input)) {
      SCOPED_TRACE(DescribeFlip(flip));
      ++found;
      EXPECT_EQ(Decide(WithKnob(input, flip.knob, flip.to)).choice, flip.choice);
      EXPECT_NE(flip.choice, choice);
      const bool counts = KnobUnit(flip.knob) != "us" && KnobUnit(flip.knob) != "B/s";
      const double back = flip.from - flip.to;
      const double before = counts ? flip.to + (back > 0 ? 1 : -1) : flip.to + back * 1e-6;
      EXPECT_EQ(Decide(WithKnob(input, flip.knob, before)).choice, choice);
    }
  }
  EXPECT_GT(found, 300);  // the inputs are not all on one side of everything
}

TEST(WhatIf, AnyInputIsAnswered) {
  const double odd[] = {0, -1, 1e300, std::numeric_limits<double>::infinity(), std::nan("")};
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    DecisionInput input = RandomInput(rng);
    for (Candidate& candidate : input.candidates) {
      if (candidate.fabric && rng() % 2) candidate.fabric->t_probe_us = odd[rng() % 5];
      if (candidate.fabric && rng() % 2) candidate.fabric->bandwidth_bytes_per_s = odd[rng() % 5];
      if (rng() % 2) candidate.queue_us = odd[rng() % 5];
    }
    if (rng() % 4 == 0) input.steps = 0;
    if (rng() % 4 == 0) input.candidates.clear();
    if (rng() % 4 == 0) input.geometry.layers = 0;
    for (const Flip& flip : Flips(input)) {
      EXPECT_FALSE(std::isnan(flip.to));
      EXPECT_FALSE(DescribeFlip(flip).empty());
    }
    (void)BreakEvenSteps(input);
    EXPECT_EQ(DescribeDecision(Decide(input), input).find('\n'), std::string::npos);
  }
  EXPECT_TRUE(Flips(DecisionInput{}).empty());
}

TEST(WhatIf, TheDescriptionIsOneLineWithBothCosts) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  const std::string text = DescribeDecision(Decide(input), input);
  EXPECT_EQ(text.find("route: "), 0u) << text;
  EXPECT_THAT(text, HasSubstr("against fetch "));
  EXPECT_THAT(text, HasSubstr("fetch from 6 steps on"));
  input.candidates.clear();
  EXPECT_THAT(DescribeDecision(Decide(input), input), HasSubstr("no holder reachable"));
}

}  // namespace
}  // namespace ckv
