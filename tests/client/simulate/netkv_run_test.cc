// Goal: one request takes the time of its parts, and NetKV's cluster behaves as its tables say.

#include "client/simulate/netkv_run.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

FabricTree NetkvCluster(const FatTree& tree = {}) {
  return FabricTree::Create(SpecOf(tree)).value();
}

NetkvStats RunOf(DecodePolicy policy, size_t profile, double load, uint64_t seed) {
  const WorkloadProfile& kind = kNetkvProfiles[profile];
  const auto requests = MakeRequests({.profile = kind,
                                      .shape = {},
                                      .requests_per_s = kind.requests_per_s * load,
                                      .duration_s = 20,
                                      .fixed_tokens = 0,
                                      .seed = seed});
  const NetkvSpec spec = {.system = {},
                          .policy = policy,
                          .weights = {},
                          .warmup_s = 5,
                          .slo_s = kind.slo_s,
                          .seed = seed};
  return RunNetkv(spec, NetkvCluster(), *requests).value();
}

TEST(NetkvRun, OneRequestTakesTheTimeOfItsParts) {
  NetkvSpec spec;
  spec.system.background = 0;
  spec.warmup_s = 0;
  const std::vector<SimRequest> requests = {
      {.arrival_s = 0, .input_tokens = 10000, .output_tokens = 100, .blocks = {1, 2}}};
  const NetkvStats stats = RunNetkv(spec, NetkvCluster(), requests).value();
  const double transfer_ms = 10000.0 * 327680 / 6.25e9 * 1e3 + 0.008;
  EXPECT_NEAR(stats.transfer_ms_mean, transfer_ms, 1e-6) << "within the pod";
  EXPECT_EQ(stats.tier_share[2], 1);
  EXPECT_NEAR(stats.ttft_ms_mean, 892 + transfer_ms + 12.37 + 0.114, 1e-6);
  EXPECT_NEAR(stats.tbt_ms_mean, 12.484, 1e-9);
  spec.policy = DecodePolicy::kRoundRobin;
  // The second request of a prompt that the instance has sends only the last block.
  spec.system.racks_per_prefill_rack = 7;
  const FatTree small = {.pods = 2, .racks_per_pod = 1, .servers_per_rack = 1};
  spec.system.instances_per_server = 1;
  std::vector<SimRequest> two(2, requests[0]);
  two[1].arrival_s = 60;
  two[1].blocks[1] = 3;
  const NetkvStats again = RunNetkv(spec, NetkvCluster(small), two).value();
  EXPECT_NEAR(again.hit_share, 512.0 / 20000, 1e-9);
}

TEST(NetkvRun, ARequestThatFitsNowhereIsRejected) {
  NetkvSpec spec;
  spec.warmup_s = 0;
  spec.system.memory_bytes = 3e9;
  const std::vector<SimRequest> requests = {
      {.arrival_s = 0, .input_tokens = 10000, .output_tokens = 100, .blocks = {1}}};
  const NetkvStats stats = RunNetkv(spec, NetkvCluster(), requests).value();
  EXPECT_EQ(stats.rejected, 1u);
  EXPECT_EQ(stats.slo_share, 0);
}

TEST(NetkvRun, FullBatchesQueue) {
  NetkvSpec spec;
  spec.warmup_s = 0;
  spec.system.batch_max = 1;
  spec.system.background = 0;
  const FatTree small = {.pods = 2, .racks_per_pod = 1, .servers_per_rack = 1};
  spec.system.instances_per_server = 1;
  const std::vector<SimRequest> requests(
      2, {.arrival_s = 0, .input_tokens = 1000, .output_tokens = 100, .blocks = {1, 2}});
  const NetkvStats stats = RunNetkv(spec, NetkvCluster(small), requests).value();
  // The second waits until the first has its 100 tokens. They share the network before.
  EXPECT_GT(stats.ttft_ms_p99, stats.ttft_ms_p50 + 99 * 12.4);
}

TEST(NetkvRun, TheSameSeedGivesTheSameRun) {
  const NetkvStats a = RunOf(DecodePolicy::kFull, 1, 1, 5), b = RunOf(DecodePolicy::kFull, 1, 1, 5);
  EXPECT_EQ(a.ttft_ms_mean, b.ttft_ms_mean);
  EXPECT_NE(a.ttft_ms_mean, RunOf(DecodePolicy::kFull, 1, 1, 6).ttft_ms_mean);
}

TEST(NetkvRun, RagAtFullLoadIsAheadInEverySeed) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const NetkvStats full = RunOf(DecodePolicy::kFull, 1, 1, seed);
    EXPECT_LT(full.ttft_ms_mean, RunOf(DecodePolicy::kRoundRobin, 1, 1, seed).ttft_ms_mean) << seed;
    EXPECT_LT(full.ttft_ms_mean, RunOf(DecodePolicy::kCacheLoad, 1, 1, seed).ttft_ms_mean) << seed;
  }
}

TEST(NetkvRun, ATopologyOfOneRackIsRefused) {
  const FatTree one = {.pods = 1, .racks_per_pod = 1};
  EXPECT_NE(RunNetkv({}, NetkvCluster(one), {}).status().message().find("one rack"),
            std::string::npos);
}

}  // namespace
}  // namespace ckv
