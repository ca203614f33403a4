#include "attention/score/top_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace ckv {
namespace {

constexpr uint32_t kSign = 0x80000000u;
constexpr size_t kKeptPerRow = 4;

}  // namespace

// Bits of floats order as their magnitudes. Those of negative ones are turned round.
uint64_t TopRows::RankOf(float score, uint32_t row) {
  if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  const uint32_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return uint64_t{ordered} << 32 | ~row;
}

ScoredRow TopRows::RowOf(uint64_t rank) {
  const auto ordered = static_cast<uint32_t>(rank >> 32);
  const uint32_t bits = (ordered & kSign) != 0 ? ordered & ~kSign : ~ordered;
  return {std::bit_cast<float>(bits), ~static_cast<uint32_t>(rank)};
}

void TopRows::Reset(uint32_t k) {
  k_ = k;
  least_ = 0;
  ranks_.clear();
  ranks_.reserve(kKeptPerRow * k);
}

void TopRows::Shrink() {
  const auto end = ranks_.begin() + k_;
  std::nth_element(ranks_.begin(), end - 1, ranks_.end(), std::greater<>());
  ranks_.erase(end, ranks_.end());
  least_ = ranks_.back();
}

void TopRows::AddRank(uint64_t rank) {
  if (rank < least_) return;
  ranks_.push_back(rank);
  if (ranks_.size() == kKeptPerRow * k_) Shrink();
}

void TopRows::Add(uint32_t first_row, std::span<const float> scores) {
  if (k_ == 0) return;
  for (size_t i = 0; i < scores.size(); ++i) {
    // Most scores are below, and cost this comparison only.
    if (scores[i] < RowOf(least_).score) continue;
    AddRank(RankOf(scores[i], first_row + static_cast<uint32_t>(i)));
  }
}

void TopRows::Add(const TopRows& other) {
  if (k_ == 0) return;
  for (const uint64_t rank : other.ranks_) AddRank(rank);
}

std::span<const ScoredRow> TopRows::Finish() {
  if (ranks_.size() > k_) Shrink();
  std::sort(ranks_.begin(), ranks_.end(), std::greater<>());
  best_.clear();
  for (const uint64_t rank : ranks_) best_.push_back(RowOf(rank));
  return best_;
}

}  // namespace ckv
