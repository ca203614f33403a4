// Goal: the candidates that are chosen are the best of all, whatever each source gave at once.
// Method: random scores with many equal ones, against a sort of all of them.

#include "client/call/score_source.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(ScoreSource, CountsRowsThroughItsChunks) {
  ScoreSource source;
  source.AddChunk(10, 100);
  source.AddChunk(5, 500);
  source.AddChunk(1, 0);
  EXPECT_EQ(source.row_count(), 16u);
  EXPECT_EQ(source.ContextRow(0), 100u);
  EXPECT_EQ(source.ContextRow(9), 109u);
  EXPECT_EQ(source.ContextRow(10), 500u);
  EXPECT_EQ(source.ContextRow(15), 0u);
  for (const uint32_t handle : {7u, 8u, 3u, 4u, 6u}) source.AddHandle(handle);
  ASSERT_EQ(source.runs.size(), 3u);
  EXPECT_EQ(source.runs[1].handle, 3u);
  EXPECT_EQ(source.runs[1].count, 2u);
}

// Rows of a source by descending score; equal scores by ascending row.
struct Truth {
  std::vector<std::pair<float, uint32_t>> rows;
  void Sort() {
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
  }
};

TEST(ChooseCandidates, AreTheBestOfAll) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const uint32_t k = 1 + rng() % 200, values = round % 3 == 0 ? 2 : round % 3 == 1 ? 20 : 1 << 20;
    const size_t source_count = 1 + rng() % 5;
    std::vector<Truth> truth(source_count);
    Truth all;
    std::vector<uint32_t> order(rng() % 1000);
    std::iota(order.begin(), order.end(), 0u);
    for (const uint32_t row : order) {
      const auto score = static_cast<float>(rng() % values);
      truth[rng() % source_count].rows.emplace_back(score, row);
      all.rows.emplace_back(score, row);
    }
    all.Sort();
    std::vector<TokenScores> sources(source_count);
    for (size_t s = 0; s < source_count; ++s) {
      truth[s].Sort();
      sources[s].candidate_count =
          std::min<uint32_t>(k, static_cast<uint32_t>(truth[s].rows.size()));
    }
    const auto give = [&](size_t s, uint32_t count) {
      for (uint32_t i = 0; i < count; ++i)
        sources[s].best.push_back(truth[s].rows[sources[s].best.size()].first);
    };
    for (size_t s = 0; s < source_count; ++s)
      give(s, std::min<uint32_t>(sources[s].candidate_count, rng() % 50));
    for (bool more = true; more;) {
      more = false;
      const float kth_best = KthBest(sources, k);
      for (size_t s = 0; s < source_count; ++s) {
        const uint32_t missing = MissingScores(sources[s], kth_best);
        ASSERT_LE(missing + sources[s].best.size(), sources[s].candidate_count);
        give(s, missing);
        more |= missing != 0;
      }
    }
    ChooseCandidates(sources, k);
    for (size_t s = 0; s < source_count; ++s) {
      for (uint32_t i = 0; i < sources[s].above_count + sources[s].tie_count; ++i)
        sources[s].rows.push_back(truth[s].rows[i].second);
    }
    std::vector<int32_t> chosen(k, 7), due(k, -1);
    SettleTies(sources, k);
    WriteChosen(sources, chosen);
    const size_t count = std::min<size_t>(k, all.rows.size());
    for (size_t i = 0; i < count; ++i) due[i] = static_cast<int32_t>(all.rows[i].second);
    std::sort(due.begin(), due.begin() + static_cast<ptrdiff_t>(count));
    EXPECT_EQ(chosen, due) << round;
  }
}

TEST(MissingScores, NothingMoreIsWantedOfWhatIsBelowTheLimit) {
  std::vector<TokenScores> sources(2);
  sources[0] = {.candidate_count = 100, .best = std::vector<float>(64, 9), .rows = {}};
  sources[1] = {.candidate_count = 100, .best = std::vector<float>(64, 1), .rows = {}};
  EXPECT_EQ(MissingScores(sources[0], KthBest(sources, 50)), 36u) << "equal scores may follow";
  EXPECT_EQ(MissingScores(sources[1], KthBest(sources, 50)), 0u);
  EXPECT_EQ(MissingScores(sources[1], KthBest(sources, 100)), 36u);
}

}  // namespace
}  // namespace ckv
