// The rows with the highest scores of a query.

#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace ckv {

struct ScoredRow {
  float score = 0;
  uint32_t row = 0;

  friend bool operator==(const ScoredRow&, const ScoredRow&) = default;
};

// Keeps the k best of any number of scored rows. The order is total: a higher score is better, and
// of equal scores the lower row. So the result does not depend on the order in which rows are
// added. A part of the rows gives its part of the result. -0 equals 0, and a NaN is below every
// number.
//
// Takes O(1) a row on average in any order. Once 4 k rows are kept, the worse of them are dropped.
// Not thread-safe.
class TopRows {
 public:
  // Forgets all rows. `k` is at most 2^20.
  void Reset(uint32_t k);
  // Adds rows first_row, first_row + 1, ... of these scores. A row is added once.
  void Add(uint32_t first_row, std::span<const float> scores);
  // Adds the rows of another one that is not finished.
  void Add(const TopRows& other);
  // Returns the best rows, the best first, at most k. They stay valid until the next call.
  std::span<const ScoredRow> Finish();

 private:
  // Bits that order as the score and the row do: the higher, the better.
  static uint64_t RankOf(float score, uint32_t row);
  static ScoredRow RowOf(uint64_t rank);
  void AddRank(uint64_t rank);
  void Shrink();

  uint32_t k_ = 0;
  uint64_t least_ = 0;  // no rank below it is among the best
  std::vector<uint64_t> ranks_;
  std::vector<ScoredRow> best_;
};

}  // namespace ckv
