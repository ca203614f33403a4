// Goal: a plan's times are the predicate's and the queues', its space that of the copies, and each
// limit can be the one that is not kept.

#include "client/sizing/corpus_plan.h"

#include <cmath>
#include <string>

#include "client/sizing/queue_wait.h"
#include "gtest/gtest.h"
#include "tests/client/sizing/corpus_inputs.h"

namespace ckv {
namespace {

using test::MadeCorpus;

TEST(CorpusPlan, OneAgentAloneHasTheTimeOfThePredicate) {
  CorpusPlanInput input = MadeCorpus();
  input.load.agents = 1;
  const HolderPlan plan = PlanHolders(input, 0, 8);
  DecisionInput question;
  question.geometry = input.corpus.geometry;
  question.tokens = 2048;
  question.query_rows = 16;
  question.here = input.requesters.here;
  question.candidates = {input.machines[0].lane};
  const double layer_us = Decide(question).cost(Primitive::kRoute).total_us / 27;
  EXPECT_NEAR(layer_us, 16 + 16 * 2184 / 25e3 + 7.6 + 2048 * 0.05 + 0.16, 0.01);
  EXPECT_DOUBLE_EQ(plan.layer_us_mean, layer_us);
  EXPECT_DOUBLE_EQ(plan.layer_us_p99, layer_us);
  EXPECT_NEAR(plan.step_us_p99, 27 * layer_us, 1e-6);
  EXPECT_EQ(plan.terms.wait_us, 0);
}

TEST(CorpusPlan, ManyAgentsWaitAsInTheQueue) {
  const CorpusPlanInput input = MadeCorpus();
  const HolderPlan plan = PlanHolders(input, 0, 8);
  const double calls_per_s = 64 * 20 * 27 / 8.0;
  EXPECT_DOUBLE_EQ(plan.calls_per_s, calls_per_s);
  const double service_us = 7.6 + 2048 * 0.05;
  EXPECT_NEAR(plan.use(PlanLimit::kKernel).used, calls_per_s * service_us / 1e6, 1e-9);
  EXPECT_NEAR(plan.rows_per_s_max, 16e6 / service_us, 1e-6);
  QueueWait kernel;
  kernel.Add({.requests_per_s = calls_per_s, .service_us = service_us, .callers = 64});
  // Four links at 25 GB/s add less than a microsecond.
  EXPECT_NEAR(plan.terms.wait_us, kernel.MeanUs(), 1);
  EXPECT_NEAR(plan.layer_us_p99 - plan.layer_us_mean + plan.terms.wait_us,
              kernel.QuantileOfLongestUs(0.99, 1), 2);
  EXPECT_DOUBLE_EQ(plan.price_per_hour, 16);
  EXPECT_DOUBLE_EQ(plan.price_per_million_steps, 16 / (64 * 20 * 3600.0) * 1e6);
}

TEST(CorpusPlan, APrimitiveThatIsNotOfferedHasNoTime) {
  CorpusPlanInput input = MadeCorpus();
  input.policy = Primitive::kLocal;  // the costs of a prefill are not given
  const HolderPlan plan = PlanHolders(input, 0, 8);
  EXPECT_FALSE(plan.meets());
  EXPECT_TRUE(std::isinf(plan.layer_us_mean));
  EXPECT_TRUE(std::isinf(plan.layer_us_p99));
}

TEST(CorpusPlan, CopiesAreSpreadOverDomains) {
  PlanCorpus corpus = MadeCorpus().corpus;
  EXPECT_DOUBLE_EQ(FullestShare(corpus, 8), 2 / 8.0);
  EXPECT_DOUBLE_EQ(FullestShare(corpus, 5), 1 / 2.0);  // domains of 3 and 2, a copy in each
  EXPECT_TRUE(std::isinf(FullestShare(corpus, 1)));
  corpus.domains = 4;
  EXPECT_DOUBLE_EQ(FullestShare(corpus, 8), 2 / 8.0);
  EXPECT_DOUBLE_EQ(FullestShare(corpus, 5), 2 / 5.0);
  corpus.replicas = corpus.domains = 1;
  EXPECT_DOUBLE_EQ(FullestShare(corpus, 3), 1 / 3.0);
  // Domains of 2, 1 and 1: the first has at most one copy.
  corpus.replicas = corpus.domains = 3;
  EXPECT_DOUBLE_EQ(FullestShare(corpus, 4), 1.0);
}

TEST(CorpusPlan, ALostDomainsLoadMovesToTheOthers) {
  CorpusPlanInput input = MadeCorpus();
  const double before = PlanHolders(input, 0, 8).calls_per_s;
  input.corpus.domains_lost = 1;
  const HolderPlan after = PlanHolders(input, 0, 8);
  EXPECT_EQ(after.holders_alive, 4u);
  EXPECT_DOUBLE_EQ(after.calls_per_s, 2 * before);
}

TEST(CorpusPlan, HoldersThatShareAProcessorTakeTurns) {
  CorpusPlanInput input = MadeCorpus();
  const HolderPlan four = PlanHolders(input, 0, 4);
  input.machines[0].processors_per_holder = 0.5;
  const HolderPlan eight = PlanHolders(input, 0, 8);
  EXPECT_DOUBLE_EQ(eight.use(PlanLimit::kKernel).used, four.use(PlanLimit::kKernel).used);
  EXPECT_NEAR(eight.terms.wait_us, four.terms.wait_us, 1);
  EXPECT_DOUBLE_EQ(eight.rows_per_s_max, four.rows_per_s_max / 2);
}

TEST(CorpusPlan, ACallOverMoreHoldersComputesLessOnEach) {
  CorpusPlanInput input = MadeCorpus();
  input.load.agents = 1;
  const HolderPlan one = PlanHolders(input, 0, 16);
  input.load.holders_per_call = 4;
  const HolderPlan four = PlanHolders(input, 0, 16);
  EXPECT_EQ(four.holders_per_call, 4u);
  EXPECT_NEAR(four.terms.compute_us, 7.6 + 512 * 0.05, 1e-9);
  EXPECT_LT(four.layer_us_mean, one.layer_us_mean);
  // A shard is all that there is, so more of them cannot take part.
  EXPECT_EQ(PlanHolders(input, 0, 4).holders_per_call, 2u);
  // Half of the corpus is on no fewer than half of a copy's holders.
  input.load.holders_per_call = 1;
  input.load.context_tokens = 50'000'000;
  EXPECT_EQ(PlanHolders(input, 0, 16).holders_per_call, 4u);
}

TEST(CorpusPlan, EachLimitCanBeTheTightest) {
  const auto tightest = [](auto change) {
    CorpusPlanInput input = MadeCorpus();
    input.goal.p50_us = 900;
    change(input);
    const HolderPlan plan = PlanHolders(input, 0, 8);
    EXPECT_FALSE(plan.meets());
    return std::string(NameOf(plan.Tightest()));
  };
  EXPECT_TRUE(PlanHolders(MadeCorpus(), 0, 8).meets());
  EXPECT_EQ(tightest([](auto& in) { in.corpus.domains = 9; }), "failure domains");
  EXPECT_EQ(tightest([](auto& in) { in.machines[0].memory_bytes = 1e11; }), "memory of holders");
  EXPECT_EQ(tightest([](auto& in) { in.machines[0].disk_bytes = 1e11; }), "disk of holders");
  EXPECT_EQ(tightest([](auto& in) { in.load.steps_per_s = 44, in.goal.p99_us = 1e6; }),
            "kernels of holders");
  EXPECT_EQ(tightest([](auto& in) { in.machines[0].network_bytes_per_s = 8e7; }),
            "links of holders");
  EXPECT_EQ(tightest([](auto& in) { in.requesters.network_bytes_per_s = 8e7; }),
            "links of requesters");
  EXPECT_EQ(tightest([](auto& in) { in.network_bytes_per_s = 6e8; }), "network");
  EXPECT_EQ(tightest([](auto& in) { in.goal.p50_us = 100; }), "p50 goal");
  EXPECT_EQ(tightest([](auto& in) { in.goal.p99_us = 200; }), "p99 goal");
  EXPECT_EQ(tightest([](auto& in) { in.policy = Primitive::kFetch; }), "row caches of requesters");
}

TEST(CorpusPlan, ThePredicateChoosesAndAFetchLoadsLinksOnly) {
  CorpusPlanInput input = MadeCorpus();
  EXPECT_EQ(PlanHolders(input, 0, 8).primitive, Primitive::kRoute);  // no cache
  input.requesters.cache_tokens = 1'000'000;
  input.requesters.here.attend.anchor_count = 1;
  input.requesters.here.attend.anchors[0] = {16, 0.01};
  const HolderPlan plan = PlanHolders(input, 0, 8);
  EXPECT_EQ(plan.primitive, Primitive::kFetch);
  EXPECT_EQ(plan.use(PlanLimit::kKernel).used, 0);
  const double rows_per_s = 64 * 20 / 100.0 * 2048 * 27;
  EXPECT_NEAR(plan.use(PlanLimit::kHolderNetwork).used, rows_per_s * 1152 / 8 / 25e9, 1e-9);
  // One step of 100 fetches, which is in the p99 and not in the p50.
  EXPECT_NEAR(plan.step_us_p50, 27 * 2048 * 0.01, 1e-6);
  EXPECT_NEAR(plan.step_us_p99, plan.step_us_p50 + plan.terms.once_us, 1e-6);
  EXPECT_NEAR(plan.terms.once_us, 2048.0 * 27 * 1152 / 25e3, 1e-6);
}

TEST(CorpusPlan, ValuesOutOfRangeAreNamed) {
  const auto error = [](auto change) {
    CorpusPlanInput input = MadeCorpus();
    change(input);
    return std::string(ValidatePlanInput(input).message());
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_EQ(error([](auto& in) { in.corpus.domains = 1; }), "corpus.domains: 1, must be 2 to 4096");
  EXPECT_EQ(error([](auto& in) { in.load.near_share = NAN; }),
            "load.near_share: nan, must be 0 to 1");
  EXPECT_EQ(error([](auto& in) { in.machines[0].lane.compute.curve.anchor_count = 0; }),
            "machines[0].kernel: it has no anchors");
  EXPECT_EQ(error([](auto& in) { in.machines.clear(); }), "machines: 0, must be 1 to 64");
}

}  // namespace
}  // namespace ckv
