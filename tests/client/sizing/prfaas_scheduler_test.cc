// Goal: requests are routed as the source says, a link that becomes narrow raises the threshold
// until it is no longer full and no queue grows, and another mix of lengths changes the split.
// Method: a fluid simulation of both clusters on a simulated clock, with arrivals from a seed.

#include "client/sizing/prfaas_scheduler.h"

#include <cmath>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/client/sizing/curves.h"

namespace ckv {
namespace {

using test::CurveTo;

PrfaasSchedulerOptions MadeOptions(double mu = 9.0) {
  PrfaasSchedulerOptions options = {
      .system = {.lengths = *LengthDistribution::Create(
                     LengthDistribution::LogNormal{mu, 1.0, 200, 100000}),
                 .kv_bytes = CurveTo(1e8, 2e9),
                 .prfaas_prefill_s = CurveTo(0.3, 6),
                 .pd_prefill_s = CurveTo(0.6, 15),
                 .prfaas_instances = 4,
                 .pd_instances = 8,
                 .egress_bytes_per_s = 12.5e9,
                 .decode_batch_max = 24,
                 .decode_step_s = 0.03,
                 .output_tokens = 800}};
  return options;
}

PrfaasScheduler Made(const PrfaasSchedulerOptions& options) {
  return *PrfaasScheduler::Create(options, Instant{1});
}

TEST(PrfaasScheduler, ShortRequestsStayAndLongOnesAreOffloaded) {
  PrfaasScheduler scheduler = Made(MadeOptions());
  const double t = scheduler.threshold();
  EXPECT_EQ(scheduler.RoutePrefill({.total_tokens = t}).cluster, PrefillCluster::kPd);
  const PrefillRoute far = scheduler.RoutePrefill({.total_tokens = t + 1});
  EXPECT_EQ(far.cluster, PrefillCluster::kPrfaas);
  EXPECT_EQ(far.uncached_tokens, t + 1);
  EXPECT_FALSE(far.moves_cache);
}

// l_total - max(l_prfaas, l_pd) <= t decides, and the longer prefix is moved to the other cluster.
TEST(PrfaasScheduler, WithBandwidthTheLongestPrefixCounts) {
  PrfaasScheduler scheduler = Made(MadeOptions());
  const double t = scheduler.threshold();
  const PrefillRoute near = scheduler.RoutePrefill(
      {.total_tokens = 2 * t, .cached_prfaas_tokens = 1.5 * t, .cached_pd_tokens = 0.1 * t});
  EXPECT_EQ(near.cluster, PrefillCluster::kPd);
  EXPECT_TRUE(near.moves_cache);
  EXPECT_DOUBLE_EQ(near.uncached_tokens, 0.5 * t);
  const PrefillRoute far = scheduler.RoutePrefill(
      {.total_tokens = 3 * t, .cached_prfaas_tokens = 0, .cached_pd_tokens = 1.5 * t});
  EXPECT_EQ(far.cluster, PrefillCluster::kPrfaas);
  EXPECT_TRUE(far.moves_cache);
  EXPECT_DOUBLE_EQ(far.uncached_tokens, 1.5 * t);
}

// l_total - l_pd <= t decides, and nothing is moved.
TEST(PrfaasScheduler, WithoutBandwidthEachClusterHasItsOwnPrefix) {
  const PrfaasSchedulerOptions options = MadeOptions();
  PrfaasScheduler scheduler = Made(options);
  const Instant later = Instant{1} + options.short_period;
  scheduler.Tick({.egress_bytes = 0.8 * options.system.egress_bytes_per_s}, later);
  EXPECT_TRUE(scheduler.is_scarce());
  const double t = scheduler.threshold();
  const PrefillRoute route = scheduler.RoutePrefill(
      {.total_tokens = 2 * t, .cached_prfaas_tokens = 1.5 * t, .cached_pd_tokens = 0.1 * t});
  EXPECT_EQ(route.cluster, PrefillCluster::kPrfaas);
  EXPECT_FALSE(route.moves_cache);
  EXPECT_DOUBLE_EQ(route.uncached_tokens, 0.5 * t) << "its own prefix is there";
}

// Both clusters with queues: a request waits until its cluster has worked off those before it.
struct Fluid {
  explicit Fluid(const PrfaasSchedulerOptions& with, uint64_t seed)
      : options(with), scheduler(Made(with)), random(seed) {}

  // One second in which `rate` requests arrive, and the link carries `link` bytes.
  void Second(double rate, double link) {
    double egress_asked = 0;
    const int count = std::poisson_distribution<int>(rate)(random);
    for (int i = 0; i < count; ++i) {
      const double share = std::uniform_real_distribution<double>(0, 1)(random);
      const double length = lengths->Quantile(share);
      const PrefillRoute route = scheduler.RoutePrefill({.total_tokens = length});
      if (route.cluster == PrefillCluster::kPrfaas) {
        prfaas_work += options.system.prfaas_prefill_s.At(length);
        egress_asked += options.system.kv_bytes.At(length);
      } else {
        pd_work += options.system.pd_prefill_s.At(length);
      }
    }
    link_work += egress_asked;
    const double carried = std::min(link, link_work);
    link_work -= carried;
    prfaas_work = std::max(0.0, prfaas_work - options.system.prfaas_instances);
    pd_work = std::max(0.0, pd_work - scheduler.split().pd_prefill);
    // A request whose KV cache waits for the link is still in the PrfaaS cluster.
    const double mean_s = options.system.prfaas_prefill_s.At(scheduler.best().long_tokens);
    const double mean_bytes = options.system.kv_bytes.At(scheduler.best().long_tokens);
    now = now + std::chrono::seconds(1);
    split_changes +=
        scheduler.Tick({.egress_bytes = carried * options.system.egress_bytes_per_s / link,
                        .prfaas_waiting = prfaas_work / mean_s + link_work / mean_bytes},
                       now);
  }

  PrfaasSchedulerOptions options;
  PrfaasScheduler scheduler;
  std::mt19937_64 random;
  const LengthDistribution* lengths = &options.system.lengths;
  Instant now{1};
  double prfaas_work = 0, pd_work = 0, link_work = 0;  // instance seconds, and bytes
  int split_changes = 0;
};

TEST(PrfaasScheduler, ANarrowLinkRaisesTheThresholdAndItReturns) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Fluid fluid(MadeOptions(), seed);
    const double best = fluid.scheduler.threshold();
    const double rate = 0.6 * fluid.scheduler.best().requests_per_s;
    const double wide = fluid.options.system.egress_bytes_per_s;
    for (int s = 0; s < 60; ++s) fluid.Second(rate, wide);
    EXPECT_NEAR(fluid.scheduler.threshold(), best, 0.5 * best);
    // A tenth of what it needs.
    const double narrow = 0.1 * 0.6 * fluid.scheduler.best().egress_bytes_per_s;
    for (int s = 0; s < 240; ++s) fluid.Second(rate, narrow);
    EXPECT_GT(fluid.scheduler.threshold(), 1.5 * best);
    EXPECT_LT(fluid.link_work / narrow, 120) << "seconds of the link that wait";
    for (int s = 0; s < 300; ++s) fluid.Second(rate, wide);
    EXPECT_NEAR(fluid.scheduler.threshold(), fluid.scheduler.best().split.threshold, 0.3 * best);
    EXPECT_LT(fluid.prfaas_work, 60);
  }
}

TEST(PrfaasScheduler, LongerInputsChangeTheSplitOnce) {
  Fluid fluid(MadeOptions(8.0), 7);
  const LengthDistribution longer =
      *LengthDistribution::Create(LengthDistribution::LogNormal{10.2, 0.8, 200, 100000});
  const uint32_t before = fluid.scheduler.split().pd_prefill;
  for (int s = 0; s < 400; ++s) fluid.Second(8, 12.5e9);
  EXPECT_EQ(fluid.split_changes, 0) << "as planned";
  fluid.lengths = &longer;
  for (int s = 0; s < 3 * 3600; ++s) fluid.Second(8, 12.5e9);
  EXPECT_NE(fluid.scheduler.split().pd_prefill, before);
  EXPECT_LE(fluid.split_changes, 3);
  PrfaasSystem system = fluid.options.system;
  system.lengths = longer;
  const double best = BestSplit(system).requests_per_s;
  const double now = BestThreshold(system, fluid.scheduler.split().pd_prefill).requests_per_s;
  EXPECT_GE(now, best / 1.03);
}

TEST(PrfaasScheduler, ALostClusterAndWrongOptionsAreNamed) {
  const auto refusal = [](auto change) {
    PrfaasSchedulerOptions options = MadeOptions();
    change(options);
    return std::string(PrfaasScheduler::Create(options, Instant{1}).status().message());
  };
  EXPECT_EQ(refusal([](auto& o) { o.egress_low = 0.95; }),
            "egress_low: not between 0 and egress_high");
  EXPECT_EQ(refusal([](auto& o) { o.step_up = 1; }), "step_up: not above 1");
  EXPECT_EQ(refusal([](auto& o) { o.system.prfaas_instances = 0; }),
            "prfaas_instances: 0, must be 1 to 65536");
  PrfaasScheduler scheduler = Made(MadeOptions());
  PrfaasSystem fewer = MadeOptions().system;
  fewer.prfaas_instances = 1;
  const double before = scheduler.threshold();
  ASSERT_TRUE(scheduler.SetSystem(fewer).ok());
  EXPECT_GT(scheduler.threshold(), before) << "one instance takes fewer requests";
  fewer.pd_instances = 0;
  EXPECT_FALSE(scheduler.SetSystem(fewer).ok());
}

}  // namespace
}  // namespace ckv
