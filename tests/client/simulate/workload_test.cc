// Goal: requests have the rate, lengths and shared prefixes that were asked for, from numbers or
// from a trace.

#include "client/simulate/workload.h"

#include <cmath>
#include <string>
#include <vector>

#include "client/simulate/netkv_run.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

WorkloadSpec RagSpec(double requests_per_s, double duration_s) {
  return {.profile = kNetkvProfiles[1],
          .shape = {},
          .requests_per_s = requests_per_s,
          .duration_s = duration_s,
          .fixed_tokens = 0,
          .seed = 3};
}

TEST(Workload, HasTheRateTheLengthsAndTheSharing) {
  const WorkloadSpec spec = RagSpec(100, 50);
  const auto requests = MakeRequests(spec).value();
  ASSERT_EQ(requests.size(), 5000u);
  double sum = 0, last = 0, shared = 0;
  for (const SimRequest& one : requests) {
    EXPECT_GE(one.arrival_s, last);
    last = one.arrival_s;
    EXPECT_GE(one.input_tokens, 4096);
    EXPECT_LE(one.input_tokens, 65536);
    EXPECT_EQ(one.blocks.size(), std::ceil(one.input_tokens / kSimBlockTokens));
    sum += one.input_tokens;
    shared += one.blocks[0] < (uint64_t{16} << 24) ? 1 : 0;
  }
  EXPECT_NEAR(sum / 5000, 10803, 20) << "of the truncated log-normal";
  EXPECT_NEAR(shared / 5000, 0.7, 0.02);
  EXPECT_EQ(MakeRequests(spec)->back().blocks, requests.back().blocks);
}

TEST(Workload, RefusesWhatItCannotMake) {
  EXPECT_EQ(MakeRequests(RagSpec(1, 0.5)).status().message(),
            "1 requests/s for 0.5 s are 0.5 requests, must be 1 to 2000000");
  EXPECT_FALSE(MakeRequests(RagSpec(std::nan(""), 1)).ok());
  WorkloadSpec spec = RagSpec(10, 10);
  spec.profile.tokens_min = 1e8;
  spec.profile.tokens_max = 2e8;
  EXPECT_FALSE(MakeRequests(spec).ok());
}

TEST(Workload, ATraceIsFilteredAndScaledByOneFactor) {
  std::vector<TraceRequest> trace;
  for (int i = 0; i <= 1000; ++i) {
    // Every second one is too short for RAG.
    trace.push_back({.arrival_s = 10 + i * 1.0,
                     .input_tokens = i % 2 == 0 ? 8192.0 : 100.0,
                     .output_tokens = 7,
                     .blocks = {1, 2, 3}});
  }
  // 501 requests in 1,000 s: 10 a second make it 50.1 s.
  const auto requests = TakeRequests(RagSpec(10, 20), trace, 30, true).value();
  EXPECT_NEAR(static_cast<double>(requests.size()), 200, 1);
  EXPECT_EQ(requests[0].input_tokens, 8192);
  EXPECT_NEAR(requests[1].arrival_s - requests[0].arrival_s, 0.1002, 1e-6);
  EXPECT_EQ(requests[0].blocks, requests[1].blocks);
  const auto by_profile = TakeRequests(RagSpec(10, 20), trace, 30, false).value();
  EXPECT_EQ(by_profile[0].blocks.size(), 16u);
  EXPECT_NE(TakeRequests(RagSpec(10, 20), trace, 31, true)
                .status()
                .message()
                .find("501 requests of 4096 to 65536 tokens last 50.1 s"),
            std::string::npos);
  EXPECT_FALSE(TakeRequests(RagSpec(10, 20), {}, 0, true).ok());
}

}  // namespace
}  // namespace ckv
