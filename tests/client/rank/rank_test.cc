// Goal: Algorithm 1 and both propositions give the source's worked examples, candidates without
// room are left out, ties go to the lower index, and the tolerated error is where the choice flips.
// Source: arXiv:2606.03910; each test names its section.

#include "client/rank/rank.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace ckv {
namespace {

constexpr double kGB = 1e9;

PathCost PathAt(double gb_per_s, double congestion, double in_flight = 0, double latency_us = 0) {
  return {.bandwidth_bytes_per_s = gb_per_s * kGB,
          .latency_us = latency_us,
          .congestion = congestion,
          .in_flight = in_flight};
}

RankCandidate CandidateAt(double matched, const PathCost& path) {
  return {.matched_tokens = matched,
          .free_bytes = 1e15,
          .queued = 0,
          .batch = 4,
          .batch_max = 16,
          .iteration_base_us = 10'000,
          .iteration_request_us = 500,
          .path = path};
}

// III-D: a 32K-token request of Llama-3-70B, 10 GB. The same pod at 50 % against another at 90 %.
TEST(Rank, TheWorkedExample) {
  const RankRequest request = {.tokens = 32768, .cache_bytes = 10 * kGB};
  std::vector<RankCandidate> candidates = {CandidateAt(0.5 * 32768, PathAt(6.25, 0.2, 1)),
                                           CandidateAt(0.9 * 32768, PathAt(3.125, 0.2, 0))};
  Ranking ranking;
  Rank(request, candidates, ranking);
  EXPECT_NEAR(ranking.candidates[0].missing_bytes, 5 * kGB, 1);
  EXPECT_NEAR(ranking.candidates[1].missing_bytes, 1 * kGB, 1);
  EXPECT_NEAR(ranking.candidates[0].bandwidth_bytes_per_s, 2.5 * kGB, 1);
  EXPECT_NEAR(ranking.candidates[1].bandwidth_bytes_per_s, 2.5 * kGB, 1);
  EXPECT_NEAR(ranking.candidates[0].transfer_us, 2.0e6, 1);
  EXPECT_NEAR(ranking.candidates[1].transfer_us, 0.4e6, 1);
  EXPECT_EQ(ranking.best, 1u);
  candidates[1].path.congestion = 0.5;
  Rank(request, candidates, ranking);
  EXPECT_NEAR(ranking.candidates[1].bandwidth_bytes_per_s, 1.5625 * kGB, 1);
  EXPECT_NEAR(ranking.candidates[1].transfer_us, 0.64e6, 1);
  // Queuing differences flip it.
  candidates[1].queued = 12 + 115;
  Rank(request, candidates, ranking);
  EXPECT_NEAR(ranking.candidates[1].queue_us, 115 * 12'000, 1e-6);
  EXPECT_EQ(ranking.best, 0u);
}

TEST(Rank, AnEngineThatHasJustStartedCountsAsTheMean) {
  std::vector<RankCandidate> candidates(4, CandidateAt(0, PathAt(10, 0)));
  candidates[1].iteration_base_us = candidates[1].iteration_request_us = 0;
  candidates[2].iteration_base_us = 0;
  candidates[2].iteration_request_us = 1'500;
  AssumeIterationTimes(candidates);
  EXPECT_EQ(candidates[0].iteration_base_us, 10'000);
  EXPECT_NEAR(candidates[1].iteration_base_us, 20'000.0 / 3, 1e-9);
  EXPECT_NEAR(candidates[1].iteration_request_us, 2'500.0 / 3, 1e-9);
  EXPECT_EQ(candidates[2].iteration_base_us, 0) << "known: an iteration takes no fixed time";
  for (RankCandidate& candidate : candidates)
    candidate.iteration_base_us = candidate.iteration_request_us = 0;
  AssumeIterationTimes(candidates);
  EXPECT_EQ(candidates[1].iteration_base_us, 0) << "none is known";
}

TEST(Rank, QueueAndDecodeAreOfTheBatch) {
  RankCandidate candidate = CandidateAt(10, PathAt(1, 0));
  candidate.queued = 12;  // as many slots are free
  Ranking ranking;
  const RankRequest request = {.tokens = 10, .cache_bytes = 100};
  Rank(request, {&candidate, 1}, ranking);
  EXPECT_EQ(ranking.candidates[0].transfer_us, 0) << "all of it is there";
  EXPECT_EQ(ranking.candidates[0].queue_us, 0);
  EXPECT_EQ(ranking.candidates[0].decode_us, 10'000 + 5 * 500);
  candidate.queued = 14;
  Rank(request, {&candidate, 1}, ranking);
  EXPECT_EQ(ranking.candidates[0].queue_us, 2 * (10'000 + 4 * 500));
  EXPECT_EQ(ranking.candidates[0].total_us,
            ranking.candidates[0].queue_us + ranking.candidates[0].decode_us);
}

TEST(Rank, WithoutRoomNoneIsChosenAndOfTiesTheFirst) {
  const RankRequest request = {.tokens = 100, .cache_bytes = 1000, .reserve_bytes = 50};
  std::vector<RankCandidate> candidates(4, CandidateAt(50, PathAt(1, 0)));
  candidates[0].free_bytes = 549;
  candidates[1].free_bytes = 550;
  Ranking ranking;
  Rank(request, candidates, ranking);
  EXPECT_FALSE(ranking.candidates[0].has_room);
  EXPECT_EQ(ranking.best, 1u);
  EXPECT_NEAR(ToleratedCongestionError(candidates, ranking), 0, 1e-9) << "a tie";
  for (RankCandidate& candidate : candidates) candidate.free_bytes = 0;
  Rank(request, candidates, ranking);
  EXPECT_FALSE(ranking.best.has_value());
  Rank(request, {}, ranking);
  EXPECT_FALSE(ranking.best.has_value());
}

TEST(Rank, OwnTransfersShareThePathUpToTheirLimit) {
  const RankRequest request = {.tokens = 100, .cache_bytes = kGB};
  Ranking ranking;
  for (const auto& [in_flight, share] : {std::pair{0.0, 1.0}, {3.0, 4.0}, {400.0, 17.0}}) {
    const RankCandidate candidate = CandidateAt(0, PathAt(1, 0, in_flight, 7));
    Rank(request, {&candidate, 1}, ranking);
    EXPECT_NEAR(ranking.candidates[0].transfer_us, 1e6 * share + 7, 1e-3);
  }
}

// IV-C: with no hit near, half far, equal congestion and queues, and k = 4, 1 < 2 holds.
TEST(Rank, Proposition1) {
  NearAgainstFar input = {.near_hit = 0,
                          .far_hit = 0.5,
                          .near = PathAt(4, 0.3),
                          .far = PathAt(1, 0.3),
                          .near_queue_us = 0,
                          .far_queue_us = 0,
                          .cache_bytes = kGB};
  EXPECT_NEAR(LeadOfNear(input), 1, 1e-9);
  input.far_hit = 0.75;
  EXPECT_NEAR(LeadOfNear(input), 0, 1e-9);
  // It is positive exactly if the near one is cheaper.
  std::mt19937 random(3);
  std::uniform_real_distribution<double> share(0, 0.95);
  for (int i = 0; i < 1000; ++i) {
    input = {share(random),
             share(random),
             PathAt(1 + 9 * share(random), share(random)),
             PathAt(1, share(random)),
             1e6 * share(random),
             1e6 * share(random),
             kGB};
    const auto total = [&](double hit, const PathCost& path, double queue_us) {
      return kGB * (1 - hit) / (path.bandwidth_bytes_per_s * (1 - path.congestion)) * 1e6 +
             queue_us;
    };
    const double near = total(input.near_hit, input.near, input.near_queue_us);
    const double far = total(input.far_hit, input.far, input.far_queue_us);
    EXPECT_EQ(LeadOfNear(input) > 0, near < far) << i;
  }
}

// V-D: B_1 / B_3 = 4 and congestions of 0.3 tolerate 0.42.
TEST(Rank, Proposition2) {
  EXPECT_NEAR(ToleratedTierError(PathAt(4, 0.3), PathAt(1, 0.3)), 0.42, 1e-9);
  EXPECT_LT(ToleratedTierError(PathAt(4, 0.99), PathAt(1, 0.3)), 0);
}

// Below the error no choice changes, above it one does.
TEST(Rank, TheToleratedErrorIsWhereTheChoiceFlips) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> share(0, 1);
  const RankRequest request = {.tokens = 1000, .cache_bytes = 5 * kGB};
  Ranking ranking, other;
  int finite = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<RankCandidate> candidates;
    for (int d = 0; d < 5; ++d) {
      candidates.push_back(
          CandidateAt(1000 * share(random), PathAt(1 + 9 * share(random), 0.9 * share(random))));
      candidates.back().queued = 30 * share(random);
    }
    Rank(request, candidates, ranking);
    const double error = ToleratedCongestionError(candidates, ranking);
    if (std::isinf(error)) continue;
    ++finite;
    const auto with = [&](double by) {
      std::vector<RankCandidate> moved = candidates;
      for (size_t d = 0; d < moved.size(); ++d) {
        double& congestion = moved[d].path.congestion;
        congestion = std::clamp(congestion + (d == *ranking.best ? by : -by), 0.0, 1 - 1e-12);
      }
      Rank(request, moved, other);
      return *other.best == *ranking.best;
    };
    EXPECT_TRUE(with(error * 0.999)) << i;
    EXPECT_FALSE(with(error * 1.001 + 1e-9)) << i;
  }
  EXPECT_GT(finite, 50);
}

}  // namespace
}  // namespace ckv
