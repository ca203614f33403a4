#include "client/call/score_source.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace ckv {
namespace {

uint32_t CountAbove(const TokenScores& source, float limit) {
  const auto end = std::partition_point(source.best.begin(), source.best.end(),
                                        [&](float score) { return score > limit; });
  return static_cast<uint32_t>(end - source.best.begin());
}

}  // namespace

float KthBest(std::span<const TokenScores> sources, uint32_t k) {
  std::vector<float> all;
  for (const TokenScores& source : sources)
    all.insert(all.end(), source.best.begin(), source.best.end());
  if (all.size() < k) return -std::numeric_limits<float>::infinity();
  std::nth_element(all.begin(), all.begin() + (k - 1), all.end(), std::greater<>());
  return all[k - 1];
}

void ScoreSource::AddChunk(uint32_t token_count, uint32_t context_row) {
  context_rows.push_back(context_row);
  first_rows.push_back(first_rows.back() + token_count);
}

void ScoreSource::AddHandle(uint32_t handle) {
  if (!runs.empty() && runs.back().handle + runs.back().count == handle) {
    ++runs.back().count;
  } else {
    runs.push_back({handle, 1});
  }
}

uint32_t ScoreSource::ContextRow(uint32_t row) const {
  const auto chunk = std::upper_bound(first_rows.begin(), first_rows.end(), row) - 1;
  return context_rows[static_cast<size_t>(chunk - first_rows.begin())] + (row - *chunk);
}

uint32_t MissingScores(const TokenScores& source, float kth_best) {
  if (source.all_known()) return 0;
  const auto known = static_cast<uint32_t>(source.best.size());
  // The unknown scores are no better than the worst known one, and the k-th best can only rise.
  if (known != 0 && source.best.back() < kth_best) return 0;
  constexpr uint32_t kMoreMin = 64;
  return std::min(source.candidate_count - known, std::max(known, kMoreMin));
}

void ChooseCandidates(std::span<TokenScores> sources, uint32_t k) {
  const float limit = KthBest(sources, k);
  uint64_t above = 0;
  for (TokenScores& source : sources) {
    source.above_count = CountAbove(source, limit);
    above += source.above_count;
  }
  const auto ties_wanted = static_cast<uint32_t>(k - std::min<uint64_t>(above, k));
  for (TokenScores& source : sources) {
    const auto end = std::partition_point(source.best.begin(), source.best.end(),
                                          [&](float score) { return score >= limit; });
    const auto ties = static_cast<uint32_t>(end - source.best.begin()) - source.above_count;
    source.tie_count = std::min(ties, ties_wanted);
  }
}

bool HasTies(std::span<const TokenScores> sources, uint32_t k) {
  uint64_t count = 0;
  for (const TokenScores& source : sources) count += source.above_count + source.tie_count;
  return count > k;
}

void SettleTies(std::span<TokenScores> sources, uint32_t k) {
  const bool has_ties = HasTies(sources, k);
  uint64_t above = 0;
  std::vector<std::pair<uint32_t, TokenScores*>> ties;  // the row and its source
  for (TokenScores& source : sources) {
    above += source.above_count;
    source.chosen_count = source.above_count + (has_ties ? 0 : source.tie_count);
    for (uint32_t i = 0; has_ties && i < source.tie_count; ++i)
      ties.emplace_back(source.rows[source.above_count + i], &source);
  }
  // A source lists equal scores by their rows, so its chosen ones come first.
  std::sort(ties.begin(), ties.end());
  ties.resize(std::min<size_t>(ties.size(), k - above));
  for (const auto& [row, source] : ties) ++source->chosen_count;
}

void WriteChosen(std::span<const TokenScores> sources, std::span<int32_t> out) {
  std::vector<uint32_t> rows;
  for (const TokenScores& source : sources)
    rows.insert(rows.end(), source.rows.begin(), source.rows.begin() + source.chosen_count);
  std::sort(rows.begin(), rows.end());
  std::fill(std::copy(rows.begin(), rows.end(), out.begin()), out.end(), -1);
}

}  // namespace ckv
