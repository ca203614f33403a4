// The cost curve of attention: its time as a function of how many query rows are attended together.
//
// For each token of cKV, a kernel reads the row from memory, once for all query rows, and computes
// with it for each of them. So there are two times per token:
//
//   u(rows)   the computing time while the row is in a cache. Kernels do not cost the same per
//             query row: a tile of 16 costs as much as one row, 64 rows share each load, a GPU
//             processes some rows at no extra cost. So u is measured at a few numbers of rows.
//             Between two of them it is interpolated linearly. Below the first anchor it is the
//             first anchor's value. Above the last it grows in proportion to the rows
//   f         the time to read the row from memory, independent of the number of query rows
//
// A processor reads ahead while it computes, but not perfectly. A share s of the shorter time is
// not hidden behind the longer one:
//
//   T(rows, tokens) = base + rows x per_row + tokens x (max(u, f) + s x min(u, f)),   u = u(rows)
//
// With s = 0, the bracket is max(u, f): f is the lower bound for few query rows. With s = 1, it is
// u + f: nothing overlaps. With f = 0, the rows are in a cache, or f was not measured.
//
// One core of a Zen 5 was measured (deploy/adr/0026-kernel-curves-with-a-floor.md). The vector
// kernel computes one query row in 48 ns a token, reads in 55, and hides nearly all of the shorter.
// A first kernel of VDPBF16PS computed up to 16 query rows in 132 ns, read in 53, and hid nothing.
// Formulas with one number fit one of the two kernels but not the other.
//
// per_row is the cost per query row that does not depend on tokens: packing the row and writing its
// partial.
//
// The curve is piecewise linear, not a power law, because the predicate reads 16 values in a
// microsecond.

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

// The memory part of a kernel's time. If all fields are zero, there is none.
struct MemoryFloor {
  double us_per_token = 0;  // f
  double shown_share = 0;   // s; clamped to [0, 1]

  friend bool operator==(const MemoryFloor&, const MemoryFloor&) = default;
};

// How much longer computing and reading take now than when they were measured
// (client/cost/live_kernel.h). A value that is not above 0 counts as 1.
struct LiveFactors {
  double compute = 1;
  double memory = 1;

  friend bool operator==(const LiveFactors&, const LiveFactors&) = default;
};

// The parts of a kernel call's time, in microseconds, as originally measured.
struct KernelTime {
  double fixed_us = 0;    // base and rows x per_row
  double compute_us = 0;  // tokens x u
  double memory_us = 0;   // tokens x f
  double shown_share = 0;

  // Returns the time of the call. Scales computing and the fixed part by `live.compute`, and memory
  // by `live.memory`.
  double Us(const LiveFactors& live = {}) const noexcept;
  // Returns the part of Us() that is proportional to memory_us. That is all of memory if it takes
  // longer than computing, otherwise the share that is not hidden.
  double MemoryPartUs(const LiveFactors& live = {}) const noexcept;
};

// Query rows that one kernel call attends together over the same cKV rows, which it reads once for
// all of them. A call over several sequences makes a run for each chunk, and for the own rows of
// each sequence. With 16 query heads and one token a sequence, the run of a chunk that eight
// sequences attend has 128 query rows.
struct SharedRun {
  double rows = 0;  // query rows
  // cKV rows. If the query rows attend different numbers of them, the mean over query rows.
  double tokens = 0;
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
  // Returns the time in microseconds for any arguments. Negative or NaN rows and tokens count as 0,
  // and 0 rows cost 0. The result never falls as either argument or the floor grows.
  double Us(double rows, double tokens) const noexcept { return Time(rows, tokens).Us(); }
  KernelTime Time(double rows, double tokens) const noexcept;
  // Returns the time of one kernel call of several runs. `rows` is the number of different query
  // rows, each of which is charged per_row_us once. The runs are added by KernelTimeSum.
  KernelTime Time(double rows, std::span<const SharedRun> runs) const noexcept;

  friend bool operator==(const ComputeCurve&, const ComputeCurve&) = default;
};

// Returns the time of `tokens` tokens over `floor`, in addition to `fixed_us` and `compute_us`.
// Negative or NaN times, shares and tokens count as 0.
KernelTime OverFloor(double fixed_us, double compute_us, const MemoryFloor& floor,
                     double tokens) noexcept;

// Adds up the runs of one kernel call, which follow one another. Each takes the longer of its own
// computing and reading, and the share of the shorter. If that is computing for some runs and
// reading for others, the sum has what shows of both, with a shown_share of 1. Otherwise it is the
// plain sum. Which of the two is longer is decided by the times as measured. So a call keeps its
// shape, and LiveKernel always learns the same factor from it. With live factors, the time of a
// mixed call is an approximation.
class KernelTimeSum {
 public:
  explicit KernelTimeSum(double fixed_us) noexcept : fixed_us_(fixed_us) {}
  void Add(const KernelTime& run) noexcept;
  // Returns the time of the call. Without live factors, Us is exactly the sum.
  KernelTime Get() const noexcept;

 private:
  const double fixed_us_;
  double shown_share_ = 0;
  double compute_us_ = 0, memory_us_ = 0;              // all runs
  double shown_compute_us_ = 0, shown_memory_us_ = 0;  // as far as they are not hidden
  bool computes_ = false, reads_ = false;  // whether there is a run that takes longer to do it
};

// Returns the most query rows for which the curve's computing takes no longer than reading the
// rows. Returns 0 if even the first anchor computes longer, or if there is no floor.
double RowsBoundByMemory(const ComputeCurve& curve) noexcept;

// One measurement: `us` for `rows` query rows over `tokens` tokens.
struct ComputeSample {
  double rows = 0;
  double tokens = 0;
  double us = 0;
  bool cold = false;  // the tokens' rows were in no cache
};

// Fits a curve through samples at two numbers of tokens for each number of rows. The slope between
// the two is the cost per token. The remainder at 0 tokens gives the base and, between the fewest
// and the most rows, per_row. Rows sampled at one number of tokens contribute to neither.
//
// Warm samples give the anchors, cold ones the floor. The floor's two numbers minimise the squared
// relative errors of the cold costs per token. Cold samples also give base and per_row if they have
// a remainder, because a call waits for its first rows. If no rows were sampled both ways, there is
// no floor. If there are no warm samples at all, the cold ones give the anchors.
//
// If computing takes longer than reading at all anchors, the samples determine only the product s x
// f. Then, and whenever the data leave a choice, the largest share is used whose error is within
// half a percent of the minimum. That share has the smallest f, so no more time than necessary is
// attributed to memory.
//
// Anchors never fall as rows grow: a sample that falls was disturbed and takes the previous value.
// If there are more than kAnchorCountMax numbers of rows, the smallest ones are used.
ComputeCurve FitComputeCurve(std::span<const ComputeSample> samples);

}  // namespace ckv
