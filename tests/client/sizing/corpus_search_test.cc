// Goal: the search returns the fewest holders that meet all limits. More load or a tighter goal
// never needs fewer. The limit that binds is named, and a goal that no number meets is told apart.

#include "client/sizing/corpus_search.h"

#include <initializer_list>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/client/sizing/corpus_inputs.h"

namespace ckv {
namespace {

using test::MadeCorpus;

CorpusPlanInput RandomCorpus(uint32_t seed) {
  std::mt19937 rng(seed);
  const auto one_of = [&rng](std::initializer_list<double> values) {
    return *(values.begin() + rng() % values.size());
  };
  CorpusPlanInput input = MadeCorpus();
  input.machines[0].count_max = 96;
  input.corpus.tokens = one_of({1e6, 1e7, 1e8});
  input.corpus.domains = static_cast<uint32_t>(one_of({2, 3, 4}));
  input.corpus.domains_lost = rng() % 2;
  input.load.steps_per_s = one_of({2, 10, 30});
  input.load.query_rows = static_cast<uint32_t>(one_of({16, 128, 1024}));
  input.load.context_cv = one_of({0, 0.5});
  input.load.selected = rng() % 2 * 1024;
  input.load.holders_per_call = 1 + rng() % 4;
  input.goal.per_step = rng() % 2 == 0;
  input.goal.p99_us = one_of({300, 1500, 30000});
  input.goal.utilisation_max = one_of({0.5, 0.9});
  input.requesters.network_bytes_per_s = one_of({1.25e9, 25e9});
  return input;
}

// More than all on offer, if none meets the goal.
uint32_t FewestOf(const CorpusPlanInput& input) {
  const MachineChoice choice = ChooseHolders(input, 0);
  return choice.best ? choice.best->holders : input.machines[0].count_max + 1;
}

TEST(CorpusSearch, TheFewestThatMeetTheGoal) {
  uint32_t met = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const CorpusPlanInput input = RandomCorpus(seed);
    ASSERT_TRUE(ValidatePlanInput(input).ok()) << ValidatePlanInput(input);
    const uint32_t fewest = FewestOf(input);
    for (uint32_t holders = 1; holders <= 96; ++holders) {
      const bool meets = PlanHolders(input, 0, holders).meets();
      if (holders <= fewest) {
        EXPECT_EQ(meets, holders == fewest) << holders;
      }
    }
    met += fewest <= 96 ? 1 : 0;
  }
  // Both kinds of result occur.
  EXPECT_GT(met, 5u);
  EXPECT_LT(met, 40u);
}

TEST(CorpusSearch, MoreLoadOrATighterGoalNeverNeedsFewer) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const CorpusPlanInput input = RandomCorpus(seed);
    const uint32_t fewest = FewestOf(input);
    CorpusPlanInput more = input;
    more.load.steps_per_s *= 1.1;
    EXPECT_GE(FewestOf(more), fewest);
    more = input;
    more.load.agents *= 2;
    EXPECT_GE(FewestOf(more), fewest);
    more = input;
    *more.goal.p99_us *= 0.9;
    EXPECT_GE(FewestOf(more), fewest);
    more = input;
    more.load.near_share = 0.5;
    EXPECT_LE(FewestOf(more), fewest);
  }
}

TEST(CorpusSearch, TheLimitThatBindsIsNamed) {
  // 64 x 20 x 27 calls of 110 us are 3.8 holders, of which 0.9 may be used: 4.2.
  CorpusPlanInput input = MadeCorpus();
  input.corpus.tokens = 1e6;
  MachineChoice choice = ChooseHolders(input, 0);
  ASSERT_TRUE(choice.best);
  EXPECT_EQ(choice.best->holders, 5u);
  EXPECT_EQ(choice.binds, PlanLimit::kKernel);
  *input.goal.p99_us = 320;
  choice = ChooseHolders(input, 0);
  EXPECT_EQ(choice.binds, PlanLimit::kP99);
  EXPECT_GT(choice.best->holders, 5u);
  input = MadeCorpus();
  input.machines[0].memory_bytes = 3e11;  // 6.2 TB in 20.7
  choice = ChooseHolders(input, 0);
  EXPECT_EQ(choice.best->holders, 22u);  // 21 is odd: 10 in one domain, with a copy
  EXPECT_EQ(choice.binds, PlanLimit::kMemory);
  EXPECT_EQ(choice.least.holders, 22u);
  input.load.agents = 1;
  input.corpus.tokens = 2048;
  choice = ChooseHolders(input, 0);
  EXPECT_EQ(choice.best->holders, 2u);
  EXPECT_EQ(choice.binds, PlanLimit::kDomains);
}

TEST(CorpusSearch, AGoalBelowACallAloneCannotBeMet) {
  CorpusPlanInput input = MadeCorpus();
  *input.goal.p99_us = 100;
  MachineChoice choice = ChooseHolders(input, 0);
  EXPECT_FALSE(choice.best);
  EXPECT_TRUE(choice.too_slow);
  EXPECT_EQ(choice.binds, PlanLimit::kP99);
  *input.goal.p99_us = 1000;
  input.machines[0].count_max = 3;
  input.corpus.tokens = 1e6;
  choice = ChooseHolders(input, 0);
  EXPECT_FALSE(choice.best);
  EXPECT_FALSE(choice.too_slow);
  EXPECT_EQ(choice.most.holders, 3u);
}

TEST(CorpusSearch, TheCheapestKindIsTakenAndChangesAreOfIt) {
  CorpusPlanInput input = MadeCorpus();
  input.corpus.tokens = 1e6;
  PlanMachine fast = input.machines[0];
  fast.name = "fast";
  fast.lane.compute.curve.anchors[0].us_per_token = 0.01;
  fast.price_per_hour = 3;
  input.machines.push_back(fast);
  const CorpusPlan plan = MakeCorpusPlan(input);
  ASSERT_TRUE(plan.cheapest);
  EXPECT_EQ(*plan.cheapest, 1u);
  const HolderPlan& best = *plan.machines[1].best;
  EXPECT_EQ(best.price_per_hour, 3.0 * best.holders);
  ASSERT_EQ(plan.changes.size(), 5u);
  for (const PlanChange& change : plan.changes) {
    ASSERT_TRUE(change.best) << change.change;
    if (std::string(change.change) != "network x 2") {
      EXPECT_GE(change.best->price_per_hour, best.price_per_hour) << change.change;
    }
  }
  for (const MachineChoice& choice : plan.machines) {
    ASSERT_LE(choice.shown.size(), MachineChoice::kShownCount);
    EXPECT_EQ(choice.shown.front().holders, choice.least.holders);
    EXPECT_EQ(choice.shown.back().holders, choice.most.holders);
  }
}

}  // namespace
}  // namespace ckv
