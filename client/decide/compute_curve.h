// The time attention takes, as a function of how many query rows are attended together.
//
// A kernel does two things for each token of cKV. It brings the row in, once for all query rows.
// And it computes with it, for each of them. So there are two times per token:
//
//   u(rows)   what computing takes while the row lies in a cache. Kernels do not cost the same per
//             query row: a tile of 16 costs as much as one row, 64 rows share each load, a GPU
//             takes some rows for nothing. So u is measured at a few numbers of rows. Between two
//             of them it lies on a straight line. Below the first anchor it is the first anchor's
//             value. Above the last it grows in proportion to the rows
//   f         what bringing the row in from memory takes, however many query rows there are
//
// A processor reads ahead while it computes, but not perfectly. A share s of the shorter of the two
// does not hide behind the longer one:
//
//   T(rows, tokens) = base + rows x per_row + tokens x (max(u, f) + s x min(u, f)),   u = u(rows)
//
// With s = 0 that is max(u, f): f is the floor that few query rows rest on. With s = 1 it is u + f:
// nothing overlaps. With f = 0 the rows are in a cache, or it was not measured.
//
// One core of a Zen 5 was measured (deploy/adr/0026-kernel-curves-with-a-floor.md). The vector
// kernel computes one query row in 48 ns a token, reads in 55, and hides nearly all of the shorter.
// A first kernel of VDPBF16PS computed up to 16 query rows in 132 ns, read in 53, and hid nothing.
// Forms with one number fit one of the two kernels and miss the other.
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

// The part of memory in a kernel's time. If all is zero, it has none.
struct MemoryFloor {
  double us_per_token = 0;  // f
  double shown_share = 0;   // s; counts as 0 below 0 and as 1 above 1

  friend bool operator==(const MemoryFloor&, const MemoryFloor&) = default;
};

// How much longer computing and reading take now than when they were measured
// (client/learn/live_kernel.h). A value not above 0 counts as 1.
struct LiveFactors {
  double compute = 1;
  double memory = 1;

  friend bool operator==(const LiveFactors&, const LiveFactors&) = default;
};

// The parts of a kernel call's time, in microseconds, as they were when they were measured.
struct KernelTime {
  double fixed_us = 0;    // base and rows x per_row
  double compute_us = 0;  // tokens x u
  double memory_us = 0;   // tokens x f
  double shown_share = 0;

  // Returns the time of the call. Computing and what is fixed are multiplied by one factor, memory
  // by the other.
  double Us(const LiveFactors& live = {}) const noexcept;
  // Returns the part of Us() that grows in proportion to memory_us: all of it if it is longer than
  // computing, else the share that shows.
  double MemoryPartUs(const LiveFactors& live = {}) const noexcept;
};

// Plain data that copies without allocation. The curve is empty until anchors are set.
struct ComputeCurve {
  static constexpr uint32_t kAnchorCountMax = 12;

  double base_us = 0;
  double per_row_us = 0;
  uint32_t anchor_count = 0;
  std::array<ComputeAnchor, kAnchorCountMax> anchors{};  // rows ascending
  MemoryFloor floor = {};

  bool empty() const { return anchor_count == 0; }
  // Returns the time in microseconds for any arguments. Rows and tokens that are negative or NaN
  // count as 0, and 0 rows cost 0. The result never falls as either argument grows, or the floor.
  double Us(double rows, double tokens) const noexcept { return Time(rows, tokens).Us(); }
  KernelTime Time(double rows, double tokens) const noexcept;

  friend bool operator==(const ComputeCurve&, const ComputeCurve&) = default;
};

// Returns `floor` over so many tokens, beside `fixed_us` and `compute_us`. A time, a share or
// tokens that are negative or NaN count as 0.
KernelTime OverFloor(double fixed_us, double compute_us, const MemoryFloor& floor,
                     double tokens) noexcept;

// Returns the most query rows that compute no longer than their rows take to come in, by the curve.
// It is 0 if even the first anchor computes longer, or if there is no floor.
double RowsBoundByMemory(const ComputeCurve& curve) noexcept;

// One measurement: `us` for `rows` query rows over `tokens` tokens.
struct ComputeSample {
  double rows = 0;
  double tokens = 0;
  double us = 0;
  bool cold = false;  // the tokens' rows lay in no cache
};

// Fits a curve through samples at two numbers of tokens for each number of rows. The slope between
// the two is the cost per token. The remainder at 0 tokens gives the base and, between the fewest
// and the most rows, per_row. Rows sampled at one number of tokens contribute to neither.
//
// Warm samples make the anchors, cold ones the floor. Its two numbers have the least squares of
// relative errors of the cold costs per token. Cold samples also make base and per_row if they have
// a remainder, because a call waits for its first rows. If no rows were sampled both ways, there is
// no floor. If there are no warm samples at all, the cold ones make the anchors.
//
// If computing is longer than reading at all anchors, only the product s x f shows. Then, and
// whenever the data leave a choice, the largest share counts whose error is within half a percent
// of the least. It has the least f, so memory is blamed for no more than it has to be.
//
// Anchors never fall as rows grow: a sample that falls was disturbed and takes the value before it.
// If there are more than kAnchorCountMax numbers of rows, the smallest ones are used.
ComputeCurve FitComputeCurve(std::span<const ComputeSample> samples);

}  // namespace ckv
