// Goal: each policy follows the signals that it has, and no other.

#include "client/simulate/decode_policy.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

// The worked example of section III-D: near with 50 % cached and a transfer in flight, far with 90
// % cached. A third one has no room.
std::vector<RankCandidate> Example() {
  RankCandidate near;
  near.matched_tokens = 16384;
  near.free_bytes = 1e12;
  near.batch_max = 64;
  near.iteration_base_us = 12000;
  near.iteration_request_us = 100;
  near.path = {.tier = 2, .bandwidth_bytes_per_s = 6.25e9, .congestion = 0.2, .in_flight = 1};
  RankCandidate far = near;
  far.matched_tokens = 29491;
  far.path = {.tier = 3, .bandwidth_bytes_per_s = 3.125e9, .congestion = 0.2};
  RankCandidate full = far;
  full.free_bytes = 0;
  return {near, far, full};
}

constexpr RankRequest kRequest = {.tokens = 32768, .cache_bytes = 10e9, .reserve_bytes = 1e9};

size_t ChoiceOf(DecodePolicy policy, const std::vector<RankCandidate>& candidates) {
  return DecodeChooser(policy).Choose(kRequest, candidates).value();
}

TEST(DecodePolicy, ChoosesByItsOwnSignals) {
  auto candidates = Example();
  EXPECT_EQ(ChoiceOf(DecodePolicy::kRoundRobin, candidates), 0u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kCache, candidates), 1u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kCacheLoad, candidates), 1u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kFull, candidates), 1u);
  // A cold far one: caches are equal, so tiers decide, then transfers, then congestion.
  candidates[1].matched_tokens = candidates[0].matched_tokens;
  candidates[1].batch = 0;
  candidates[0].batch = 1;
  EXPECT_EQ(ChoiceOf(DecodePolicy::kLoad, candidates), 1u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kCacheLoad, candidates), 1u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kTopology, candidates), 0u);
  candidates[0].path.in_flight = 3;
  EXPECT_EQ(ChoiceOf(DecodePolicy::kTopology, candidates), 0u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kStatic, candidates), 1u);
  candidates[0].path.in_flight = 0;
  candidates[0].path.congestion = 0.9;
  EXPECT_EQ(ChoiceOf(DecodePolicy::kStatic, candidates), 0u);
  EXPECT_EQ(ChoiceOf(DecodePolicy::kFull, candidates), 1u);
}

TEST(DecodePolicy, WeightsMoveCacheLoad) {
  auto candidates = Example();
  candidates[1].batch = 40;  // 40 % more cached against 62.5 % more load
  EXPECT_EQ(ChoiceOf(DecodePolicy::kCacheLoad, candidates), 0u);
  EXPECT_EQ(DecodeChooser(DecodePolicy::kCacheLoad, {2, 0.1}).Choose(kRequest, candidates), 1u);
}

TEST(DecodePolicy, EqualsTakeTurnsAndFullOnesAreSkipped) {
  std::vector<RankCandidate> candidates(4, Example()[0]);
  candidates[2].free_bytes = 0;
  for (size_t policy = 0; policy < kDecodePolicyCount; ++policy) {
    DecodeChooser chooser(static_cast<DecodePolicy>(policy));
    std::multiset<size_t> chosen;
    for (int i = 0; i < 6; ++i) chosen.insert(chooser.Choose(kRequest, candidates).value());
    EXPECT_EQ(chosen, (std::multiset<size_t>{0, 0, 1, 1, 3, 3}))
        << DecodePolicyName(static_cast<DecodePolicy>(policy));
  }
  for (RankCandidate& one : candidates) one.free_bytes = 0;
  EXPECT_FALSE(DecodeChooser(DecodePolicy::kFull).Choose(kRequest, candidates));
}

}  // namespace
}  // namespace ckv
