// Goal: the best rows are those of a full sort, in any order of adding. Method: random and tied
// scores, and scores in the worst orders.

#include "attention/score/top_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace ckv {
namespace {

std::vector<ScoredRow> SortedBest(const std::vector<float>& scores, uint32_t k) {
  std::vector<ScoredRow> all;
  for (uint32_t i = 0; i < scores.size(); ++i)
    all.push_back({std::isnan(scores[i]) ? -INFINITY : scores[i], i});
  std::stable_sort(all.begin(), all.end(),
                   [](const ScoredRow& a, const ScoredRow& b) { return a.score > b.score; });
  all.resize(std::min<size_t>(all.size(), k));
  return all;
}

std::vector<ScoredRow> Best(const std::vector<float>& scores, uint32_t k, uint32_t step) {
  TopRows top;
  top.Reset(k);
  for (uint32_t at = 0; at < scores.size(); at += step) {
    const auto count = std::min<size_t>(step, scores.size() - at);
    top.Add(at, std::span(scores).subspan(at, count));
  }
  const auto best = top.Finish();
  return {best.begin(), best.end()};
}

TEST(TopRows, AreThoseOfASort) {
  std::mt19937 rng(1);
  for (const uint32_t count : {0u, 1u, 5u, 100u, 3000u}) {
    for (const uint32_t k : {0u, 1u, 7u, 100u, 2048u}) {
      for (const int values : {2, 1000, 1 << 30}) {
        const int half = values / 2;
        std::vector<float> scores(count);
        for (float& score : scores)
          score = static_cast<float>(static_cast<int>(rng() % values) - half);
        const auto due = SortedBest(scores, k);
        EXPECT_EQ(Best(scores, k, 1), due) << count << " " << k << " " << values;
        EXPECT_EQ(Best(scores, k, 64), due);
        std::sort(scores.begin(), scores.end());  // each row is better than those before
        EXPECT_EQ(Best(scores, k, 64), SortedBest(scores, k));
      }
    }
  }
}

TEST(TopRows, OrderOddValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {-0.0f, NAN, 0.0f, -inf, inf, -1e-45f, 1e-45f, -NAN, -2};
  const std::vector<uint32_t> order = {4, 6, 0, 2, 5, 8, 1, 3, 7};
  const auto best = Best(scores, 9, 3);
  ASSERT_EQ(best.size(), 9u);
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(best[i].row, order[i]) << i;
}

// The parts of several holders, or threads, make the whole.
TEST(TopRows, PartsMakeTheWhole) {
  std::mt19937 rng(2);
  std::vector<float> scores(10000);
  for (float& score : scores) score = static_cast<float>(rng() % 50);
  TopRows parts[3], all;
  all.Reset(300);
  for (TopRows& part : parts) part.Reset(300);
  for (uint32_t at = 0; at < 10000; at += 100)
    parts[rng() % 3].Add(at, std::span(scores).subspan(at, 100));
  for (const TopRows& part : parts) all.Add(part);
  const auto best = all.Finish();
  EXPECT_EQ(std::vector(best.begin(), best.end()), SortedBest(scores, 300));
}

}  // namespace
}  // namespace ckv
