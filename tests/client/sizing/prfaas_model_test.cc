// Goal: equations 1 to 8 as written, the best split of small systems against all splits, and
// limits. The source's own figures are in tests/client/tools/ctl/prfaas_plan_test.cc.

#include "client/sizing/prfaas_model.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"
#include "tests/client/sizing/curves.h"

namespace ckv {
namespace {

using test::CurveTo;

PrfaasSystem MadeSystem() {
  return {
      .lengths = *LengthDistribution::Create(LengthDistribution::LogNormal{9.0, 1.2, 200, 100000}),
      .kv_bytes = CurveTo(1e8, 2e9),
      .prfaas_prefill_s = CurveTo(0.3, 6),
      .pd_prefill_s = CurveTo(0.6, 15),
      .prfaas_instances = 3,
      .pd_instances = 6,
      .egress_bytes_per_s = 5e9,
      .decode_batch_max = 24,
      .decode_step_s = 0.03,
      .output_tokens = 800};
}

TEST(PrfaasModel, TheEquationsAreAsWritten) {
  const PrfaasSystem system = MadeSystem();
  ASSERT_TRUE(ValidateSystem(system).ok()) << ValidateSystem(system);
  const PrfaasThroughput at = ThroughputOf(system, {12000, 2, 4});
  const double p = system.lengths.ShareAbove(12000);
  const double l_long = system.lengths.MeanAbove(12000);
  const double l_short = system.lengths.MeanUpTo(12000);
  const double prfaas =
      std::min(3 / system.prfaas_prefill_s.At(l_long), 5e9 / system.kv_bytes.At(l_long));
  EXPECT_DOUBLE_EQ(at.prfaas, prfaas);
  EXPECT_DOUBLE_EQ(at.pd_prefill, 2 / system.pd_prefill_s.At(l_short));
  EXPECT_DOUBLE_EQ(at.pd_decode, 4 * 24 / (0.03 * 800));
  EXPECT_DOUBLE_EQ(at.requests_per_s,
                   std::min({prfaas / p, at.pd_prefill / (1 - p), at.pd_decode}));
  EXPECT_DOUBLE_EQ(at.egress_bytes_per_s, at.requests_per_s * p * system.kv_bytes.At(l_long));
  EXPECT_DOUBLE_EQ(KvBytesPerSecond(system.kv_bytes, system.prfaas_prefill_s, 1000), 1e8 / 0.3);
  EXPECT_DOUBLE_EQ(EgressNeeded(64, system.kv_bytes, system.prfaas_prefill_s, 1000),
                   64 * 1e8 / 0.3);
}

TEST(PrfaasModel, TheBestSplitIsNotBeatenAndBalances) {
  const PrfaasSystem system = MadeSystem();
  const PrfaasThroughput best = BestSplit(system);
  for (uint32_t prefill = 0; prefill <= 6; ++prefill) {
    for (double t = 200; t < 100000; t *= 1.04) {
      const PrfaasThroughput at = ThroughputOf(system, {t, prefill, 6 - prefill});
      EXPECT_LE(at.requests_per_s, best.requests_per_s * 1.002) << t << " " << prefill;
    }
  }
  // Equation 7.
  const double p = best.share_offloaded;
  ASSERT_NE(best.limit, PrfaasLimit::kDecode);
  EXPECT_NEAR(best.prfaas / p / (best.pd_prefill / (1 - p)), 1, 0.01);
}

TEST(PrfaasModel, EachStageCanBeTheLimit) {
  PrfaasSystem system = MadeSystem();
  const PrfaasSplit split = {12000, 2, 4};
  system.egress_bytes_per_s = 1e7;
  EXPECT_EQ(ThroughputOf(system, split).limit, PrfaasLimit::kEgress);
  system = MadeSystem();
  system.prfaas_prefill_s = system.prfaas_prefill_s.Scaled(100);
  EXPECT_EQ(ThroughputOf(system, split).limit, PrfaasLimit::kPrfaasCompute);
  system = MadeSystem();
  system.pd_prefill_s = system.pd_prefill_s.Scaled(100);
  EXPECT_EQ(ThroughputOf(system, split).limit, PrfaasLimit::kPdPrefill);
  system = MadeSystem();
  system.decode_step_s = 10;
  EXPECT_EQ(ThroughputOf(system, split).limit, PrfaasLimit::kDecode);
}

TEST(PrfaasModel, WithoutInstancesOfAKindEverythingTakesTheOtherWay) {
  const PrfaasSystem system = MadeSystem();
  const PrfaasThroughput naive = NaiveHeterogeneous(system);
  EXPECT_EQ(naive.share_offloaded, 1);
  EXPECT_NEAR(naive.long_tokens, system.lengths.Mean(), 1);
  const PrfaasThroughput alone = BestHomogeneous(system, 9);
  EXPECT_EQ(alone.share_offloaded, 0);
  EXPECT_EQ(alone.prfaas, 0);
  EXPECT_EQ(alone.egress_bytes_per_s, 0);
  EXPECT_EQ(alone.split.pd_prefill + alone.split.pd_decode, 9u);
  EXPECT_GT(BestSplit(system).requests_per_s, naive.requests_per_s);
}

// A prefill of a share of the requests takes no longer than the quantile of that share.
TEST(PrfaasModel, PrefillTimesAreOfBothClusters) {
  const PrfaasSystem system = MadeSystem();
  const PrfaasThroughput at = ThroughputOf(system, {12000, 2, 4});
  double within = 0, mean = 0;
  constexpr int kParts = 20000;
  for (int i = 0; i < kParts; ++i) {
    const double l = system.lengths.Quantile((i + 0.5) / kParts);
    const double s = (l > 12000 ? system.prfaas_prefill_s : system.pd_prefill_s).At(l);
    within += s <= at.p90_prefill_s ? 1 : 0;
    mean += s;
  }
  EXPECT_NEAR(within / kParts, 0.9, 0.002);
  EXPECT_NEAR(mean / kParts, at.mean_prefill_s, at.mean_prefill_s * 0.002);
}

TEST(PrfaasModel, MoreOfTheLimitGains) {
  const auto changes = Sensitivities(MadeSystem());
  ASSERT_EQ(changes.size(), 9u);
  EXPECT_EQ(changes[0].change, "one PrfaaS instance more");
  EXPECT_GT(changes[0].gain, 0);
  EXPECT_GT(changes[1].gain, 0);
  for (size_t i = 3; i < changes.size(); ++i) EXPECT_LE(changes[i].gain, 1e-9) << changes[i].change;
}

TEST(PrfaasModel, AWrongSystemIsNamed) {
  const auto refusal = [](auto change) {
    PrfaasSystem system = MadeSystem();
    change(system);
    return std::string(ValidateSystem(system).message());
  };
  EXPECT_EQ(refusal([](PrfaasSystem& s) { s.egress_bytes_per_s = 0; }),
            "egress_bytes_per_s: not above 0");
  EXPECT_EQ(refusal([](PrfaasSystem& s) { s.prfaas_instances = 0; }),
            "prfaas_instances: 0, must be 1 to 65536");
  EXPECT_EQ(refusal([](PrfaasSystem& s) {
              s.kv_bytes = *LengthCurve::Create({{1, 1}, {50, 2}});
            }),
            "kv_bytes: ends at 50 tokens, but prompts have up to 100000");
}

}  // namespace
}  // namespace ckv
