// What attending takes, as a function of how many query rows are attended together.
//
// Kernels do not cost the same a row: one row of a CPU runs at the speed of memory, 64 rows share
// what is read, and a GPU takes some rows for nothing. So the cost a token of cKV is measured at a
// few numbers of rows, and lies on the straight line between two of them:
//
//   T(rows, tokens) = base + rows x per_row + tokens x u(rows),  u below the first anchor that of
//   the first, above the last growing as the rows do.
//
// per_row is what a query row costs however few tokens it sees: it is packed, and its partial
// written.
//
// A line and not a power: the predicate reads 16 such values in a microsecond.

#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace ckv {

struct ComputeAnchor {
  double rows = 0;
  double us_per_token = 0;  // of all those rows together

  friend bool operator==(const ComputeAnchor&, const ComputeAnchor&) = default;
};

// Plain data, no allocation; copies freely. Empty until anchors are set.
struct ComputeCurve {
  static constexpr uint32_t kAnchorCountMax = 12;

  double base_us = 0;
  double per_row_us = 0;
  uint32_t anchor_count = 0;
  std::array<ComputeAnchor, kAnchorCountMax> anchors{};  // rows ascending

  bool empty() const { return anchor_count == 0; }
  // Total: rows and tokens that are negative or NaN count as 0, and no rows cost nothing. Never
  // falls as either grows.
  double Us(double rows, double tokens) const noexcept;

  friend bool operator==(const ComputeCurve&, const ComputeCurve&) = default;
};

// What was measured: `us` at `rows` over `tokens`.
struct ComputeSample {
  double rows = 0;
  double tokens = 0;
  double us = 0;
};

// The curve through samples at two numbers of tokens each: the slope between them is what a token
// costs, and what is left at none is the base and, between the fewest and the most rows, per_row.
// Rows with one number of tokens only say nothing of these two. Anchors never fall as rows grow: a
// sample that says so was disturbed, and takes the value before it. More than kAnchorCountMax
// numbers of rows: the first ones.
ComputeCurve FitComputeCurve(std::span<const ComputeSample> samples);

}  // namespace ckv
