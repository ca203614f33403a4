// Judges a characterization's samples: how well the model fits, and how much the predicate's
// choices cost over the best measured ones.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/cost/compute_curve.h"
#include "client/cost/predicate.h"
#include "client/cost/profile_file.h"
#include "client/tools/characterize/sample.h"

namespace ckv {

// From this number of query rows on, a route's transfer outweighs its fixed cost. The paper reports
// its fit above this value (arXiv:2606.01502 section 5).
inline constexpr uint32_t kLargeQueryRows = 512;
// Two primitives whose times differ by less are a tie, and either choice is right.
inline constexpr double kTieBand = 0.10;
// How many standard errors outside the tie band a point must be. A grid has some 360 points per
// fabric, many of them ties. At two errors, eight points would be outside by chance, more than the
// share of wrong choices to be shown. At three errors, half a point would be.
inline constexpr double kErrorCount = 3;

// The mean of |model - measured| / measured, or 0 with no samples.
struct ModelError {
  double mape = 0;
  uint32_t count = 0;
};

// One point of the decision grid: M_q rows per layer attend a chunk of `tokens`, `steps` times.
struct GridPoint {
  std::string fabric;
  uint32_t query_rows = 0;
  uint64_t tokens = 0;
  uint32_t steps = 1;
  // Measured microseconds over all steps and layers, in the order of Primitive. Unset if not
  // measured.
  std::array<std::optional<double>, kPrimitiveCount> us;
  std::array<std::optional<double>, kPrimitiveCount> error_us;  // their standard errors, if known
  Primitive best = Primitive::kRoute;
  std::optional<Primitive> chosen;

  // Returns the chosen primitive's time divided by the best one's. Returns 1 if nothing was chosen
  // or the choice was not measured.
  double regret() const;
  bool right() const { return chosen && (*chosen == best || regret() <= 1 + kTieBand); }
  // Returns true if no other primitive is within the tie band of the best.
  bool clear() const;
  // Returns true if the point is clear by more than the noise of the measurement. It must be
  // outside the tie band by kErrorCount standard errors, and every error must be known. The errors
  // are added as if independent for all primitives. Fetch and local (recompute) do share some
  // error, so the test is stricter than necessary between those two.
  bool resolved() const;
};

struct FabricFindings {
  std::string fabric;
  ModelError all, large;  // errors of routes
  // The same of the time beyond the holder's kernel: the model's less its kernel against the
  // measured less the measured kernel. Points where either is not above 0 do not count.
  ModelError beyond, beyond_large;
  std::vector<GridPoint> grid;
  // `regret` is the total time of the choices divided by that of the best ones, summed over the
  // grid, minus 1. `right_share` is the share of clear points at which the choice is the best; 0 if
  // there are none.
  double regret = 0;
  double right_share = 0;
  uint32_t clear_count = 0;
  // The same for resolved points only. If the rounds of one measurement differ by more than its
  // resolution, they cannot show which choice is right.
  double resolved_right_share = 0;
  uint32_t resolved_count = 0;
};

// Returns the choice at a point, or nothing if no primitive is offered.
using Chooser = absl::FunctionRef<std::optional<Primitive>(
    const std::string& fabric, uint32_t query_rows, uint64_t tokens, uint32_t steps)>;

// Returns one entry per fabric over which routes were measured, in order of first appearance. Each
// (query rows, tokens) with a measured route is a grid point, once for each of `steps`. Fetch and
// local (recompute) include the local attention (kHere) of the same point, `layers` times per step.
std::vector<FabricFindings> FindingsOf(std::span<const Sample> samples, uint32_t layers,
                                       std::span<const uint32_t> steps, Chooser chooser);

// A kernel whose curve was calibrated.
struct KernelCurve {
  std::string name;  // "here", or "h0 over shm" for a holder's kernel
  ComputeCurve curve;
};
// Returns the curves of a profile: this machine's first, then the lanes'.
std::vector<KernelCurve> KernelCurvesOf(const Profile& profile);
// Describes the curve's floor relative to its anchors: "reading a row takes 57 ns; bound by memory
// up to 3 query rows".
std::string DescribeFloor(const ComputeCurve& curve);

}  // namespace ckv
