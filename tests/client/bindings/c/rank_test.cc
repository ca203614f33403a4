// Goal: ckv_rank gives the costs of client/rank, and names each number that is not valid.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "client/bindings/c/ckv.h"

namespace {

using testing::HasSubstr;

// The source's worked example (section III-D): 10 GB, the same pod at 50 %, another at 90 %.
struct RankExample {
  RankExample() {
    for (ckv_rank_candidate& one : candidates) {
      one.struct_size = sizeof one;
      one.free_bytes = 1e15;
      one.batch = 4;
      one.batch_max = 16;
      one.iteration_base_us = 10000;
      one.iteration_request_us = 500;
      one.congestion = 0.2;
    }
    candidates[0].matched_tokens = 0.5 * 32768;
    candidates[0].bandwidth_bytes_per_s = 6.25e9;
    candidates[0].in_flight = 1;
    candidates[1].matched_tokens = 0.9 * 32768;
    candidates[1].bandwidth_bytes_per_s = 3.125e9;
    for (ckv_rank_cost& one : costs) one.struct_size = sizeof one;
  }
  ckv_status Rank() { return ckv_rank(&request, candidates, 2, costs, &best, &tolerated); }

  ckv_rank_request request = {sizeof(ckv_rank_request), 32768, 10e9, 0};
  ckv_rank_candidate candidates[2] = {};
  ckv_rank_cost costs[2] = {};
  uint32_t best = 7;
  double tolerated = -1;
};

TEST(CkvRank, TheWorkedExample) {
  RankExample example;
  ASSERT_EQ(example.Rank(), CKV_OK) << ckv_last_error(nullptr);
  EXPECT_EQ(example.best, 1u);
  EXPECT_NEAR(example.costs[0].transfer_us, 2.0e6, 1);
  EXPECT_NEAR(example.costs[1].transfer_us, 0.4e6, 1);
  EXPECT_EQ(example.costs[0].decode_us, 12500);
  EXPECT_EQ(example.costs[0].has_room, 1u);
  EXPECT_GT(example.tolerated, 0.3);
  EXPECT_EQ(ckv_rank(&example.request, example.candidates, 2, nullptr, &example.best, nullptr),
            CKV_OK);
  for (ckv_rank_candidate& one : example.candidates) one.free_bytes = 0;
  ASSERT_EQ(example.Rank(), CKV_OK);
  EXPECT_EQ(example.best, CKV_RANK_NONE);
  EXPECT_EQ(example.costs[1].has_room, 0u);
}

TEST(CkvRank, AWrongNumberIsNamed) {
  const auto refusal = [](auto change) {
    RankExample example;
    change(example);
    EXPECT_EQ(example.Rank(), CKV_INVALID_ARGUMENT);
    EXPECT_EQ(example.best, 7u) << "nothing was written";
    return std::string(ckv_last_error(nullptr));
  };
  EXPECT_THAT(refusal([](RankExample& e) { e.request.tokens = 0; }), HasSubstr("tokens is 0"));
  EXPECT_THAT(refusal([](RankExample& e) { e.candidates[1].queued = -1; }),
              HasSubstr("ckv_rank_candidate 1: queued is -1"));
  EXPECT_THAT(refusal([](RankExample& e) { e.candidates[0].latency_us = std::nan(""); }),
              HasSubstr("ckv_rank_candidate 0: latency_us is nan"));
  EXPECT_THAT(refusal([](RankExample& e) { e.candidates[0].congestion = 1; }),
              HasSubstr("congestion is 1, not below 1"));
  EXPECT_THAT(refusal([](RankExample& e) { e.request.struct_size = 3; }),
              HasSubstr("ckv_rank_request: struct_size 3"));
  EXPECT_THAT(refusal([](RankExample& e) { e.costs[0].struct_size = 3; }),
              HasSubstr("ckv_rank_cost: struct_size 3"));
  RankExample example;
  EXPECT_EQ(ckv_rank(&example.request, example.candidates, 0, nullptr, &example.best, nullptr),
            CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_rank(&example.request, example.candidates, 2, nullptr, nullptr, nullptr),
            CKV_INVALID_ARGUMENT);
}

}  // namespace
