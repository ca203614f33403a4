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
#include "client/characterize/sample.h"
#include "client/decide/compute_curve.h"
#include "client/decide/predicate.h"
#include "client/decide/profile_file.h"

namespace ckv {

// From this many query rows on, a route's transfer outweighs its fixed cost. The paper states its
// fit (arXiv:2606.01502 section 5) above this.
inline constexpr uint32_t kLargeQueryRows = 512;
// Two primitives whose times differ by less are a tie, and either choice is right.
inline constexpr double kTieBand = 0.10;
// The standard errors by which a point must stand out of the tie band. A grid has some 360 points
// per fabric, many of them ties. At two errors, eight would stand out by chance, which is more than
// the share of wrong choices to be shown. At three it is a half.
inline constexpr double kErrorCount = 3;

// The mean of |model - measured| / measured. With no samples it is 0.
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
  // Measured microseconds over all steps and layers, in the order of Primitive. Entries that were
  // not measured are unset.
  std::array<std::optional<double>, kPrimitiveCount> us;
  std::array<std::optional<double>, kPrimitiveCount> error_us;  // their standard errors, if known
  Primitive best = Primitive::kRoute;
  std::optional<Primitive> chosen;

  // Returns the chosen one's time over the best one's. It is 1 if nothing was chosen or the choice
  // was not measured.
  double regret() const;
  bool right() const { return chosen && (*chosen == best || regret() <= 1 + kTieBand); }
  // Returns true if no other primitive is within the tie band of the best.
  bool clear() const;
  // Returns true if the point is clear by more than the noise of the measurement. It must lie
  // outside the tie band by kErrorCount standard errors, and each error must be known. The errors
  // are added as if no two primitives shared any. Fetch and local do share some, so between those
  // two this asks for more than it needs.
  bool resolved() const;
};

struct FabricFindings {
  std::string fabric;
  ModelError all, large;  // errors of routes
  std::vector<GridPoint> grid;
  // The time of the choices over that of the best, summed over the grid, less 1. The share of clear
  // points at which the choice is the best; 0 if there are none.
  double regret = 0;
  double right_share = 0;
  uint32_t clear_count = 0;
  // The same for resolved points alone. If the rounds of one measurement differ by more than it
  // resolves, they cannot tell which choice is right.
  double resolved_right_share = 0;
  uint32_t resolved_count = 0;
};

// Returns the choice at a point, or nothing if no primitive is offered.
using Chooser = absl::FunctionRef<std::optional<Primitive>(
    const std::string& fabric, uint32_t query_rows, uint64_t tokens, uint32_t steps)>;

// Returns one entry per fabric that routes were measured over, in order of first appearance. Each
// (query rows, tokens) with a measured route is a grid point, at each of `steps`. Fetch and local
// include the attention here (kHere) of the same point, `layers` times per step.
std::vector<FabricFindings> FindingsOf(std::span<const Sample> samples, uint32_t layers,
                                       std::span<const uint32_t> steps, Chooser chooser);

// Returns where a latency curve over 1, 2, 4, ... at once turns: the last count whose latency is at
// most twice that of one. It is 0 if nothing was measured.
uint32_t Elbow(std::span<const Sample> samples, Sweep sweep, const std::string& fabric);

// The growth of a curve over 1, 2, 3, ... at once: the latency at the highest count over that at
// one.
struct SweepGrowth {
  double ratio = 0;       // 0 if nothing was measured
  uint32_t parallel = 0;  // the highest count
};
SweepGrowth GrowthOf(std::span<const Sample> samples, Sweep sweep, const std::string& fabric);

// A kernel whose curve was calibrated.
struct KernelCurve {
  std::string name;  // "here", or "h0 over shm" for a holder's
  ComputeCurve curve;
};
// Returns the curves of a profile: the one of this machine first, then the lanes'.
std::vector<KernelCurve> KernelCurvesOf(const Profile& profile);
// Returns how the curve's floor stands to its anchors: "a row comes in in 57 ns; bound by memory up
// to 3 query rows".
std::string DescribeFloor(const ComputeCurve& curve);

}  // namespace ckv
