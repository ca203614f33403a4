// The time attention takes, as a function of how many query rows are attended together.
//
// Kernels do not cost the same per row. One row on a CPU runs at memory speed, 64 rows share each
// read, and a GPU takes some rows for free. So the cost per token of cKV is measured at a few
// numbers of rows. Between two of them it lies on a straight line:
//
//   T(rows, tokens) = base + rows x per_row + tokens x u(rows)
//
// Below the first anchor u is the first anchor's value. Above the last, u grows in proportion to
// the rows.
//
// per_row is the cost of a query row however few tokens it sees: packing it and writing its
// partial.
//
// The curve is linear and not a power law, because the predicate reads 16 values in a microsecond.

#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace ckv {

struct ComputeAnchor {
  double rows = 0;
  double us_per_token = 0;  // microseconds per token for all `rows` together

  friend bool operator==(const ComputeAnchor&, const ComputeAnchor&) = default;
};

// Plain data that copies without allocation. The curve is empty until anchors are set.
struct ComputeCurve {
  static constexpr uint32_t kAnchorCountMax = 12;

  double base_us = 0;
  double per_row_us = 0;
  uint32_t anchor_count = 0;
  std::array<ComputeAnchor, kAnchorCountMax> anchors{};  // rows ascending

  bool empty() const { return anchor_count == 0; }
  // Returns the time in microseconds for any arguments. Rows and tokens that are negative or NaN
  // count as 0, and 0 rows cost 0. The result never falls as either argument grows.
  double Us(double rows, double tokens) const noexcept;

  friend bool operator==(const ComputeCurve&, const ComputeCurve&) = default;
};

// One measurement: `us` for `rows` query rows over `tokens` tokens.
struct ComputeSample {
  double rows = 0;
  double tokens = 0;
  double us = 0;
};

// Fits a curve through samples at two numbers of tokens for each number of rows. The slope between
// the two is the cost per token. The remainder at 0 tokens gives the base and, between the fewest
// and the most rows, per_row. Rows sampled at one number of tokens contribute to neither.
//
// Anchors never fall as rows grow: a sample that falls was disturbed and takes the value before it.
// If there are more than kAnchorCountMax numbers of rows, the smallest ones are used.
ComputeCurve FitComputeCurve(std::span<const ComputeSample> samples);

}  // namespace ckv
