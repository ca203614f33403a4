// What a characterization's samples say: how well the model fits, and what the predicate's choices
// cost against the best that was measured.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/characterize/sample.h"
#include "client/predicate.h"

namespace ckv {

// Query rows from which on a route's transfer outweighs what is fixed in it: the paper's fit
// (arXiv:2606.01502 section 5) is stated above this.
inline constexpr uint32_t kLargeQueryRows = 512;
// Two primitives whose times differ by less are a tie: either choice is right.
inline constexpr double kTieBand = 0.10;
// A grid has some 360 points of a fabric, many of them ties: at two errors eight would stand out of
// the tie by chance, which is more than the share of wrong choices that is to be told; at three, a
// half.
inline constexpr double kErrorCount = 3;

// |model - measured| / measured, averaged. 0 samples: 0.
struct ModelError {
  double mape = 0;
  uint32_t count = 0;
};

// One point of the decision grid: a chunk of `tokens` attended by M_q rows a layer, `steps` times.
struct GridPoint {
  std::string fabric;
  uint32_t query_rows = 0;
  uint64_t tokens = 0;
  uint32_t steps = 1;
  // Measured, over all steps and layers, in the order of Primitive; absent: not measured.
  std::array<std::optional<double>, kPrimitiveCount> us;
  std::array<std::optional<double>, kPrimitiveCount> error_us;  // their standard errors, if known
  Primitive best = Primitive::kRoute;
  std::optional<Primitive> chosen;

  // The chosen one's time over the best one's; 1 where nothing was chosen, or what was not
  // measured.
  double regret() const;
  bool right() const { return chosen && (*chosen == best || regret() <= 1 + kTieBand); }
  // No two primitives within the tie band of the best.
  bool clear() const;
  // Clear, and by more than the measurement's own noise: outside the tie band by kErrorCount
  // standard errors, of which each is known. They are added as if no two primitives shared any of
  // it, which fetch and local do: between those two it asks for more than it need.
  bool resolved() const;
};

struct FabricFindings {
  std::string fabric;
  ModelError all, large;  // of routes
  std::vector<GridPoint> grid;
  // Time chosen over time of the best, summed over the grid, less 1; and the share of clear points
  // where the choice is the best; 0 where there are none.
  double regret = 0;
  double right_share = 0;
  uint32_t clear_count = 0;
  // The same of the resolved ones alone. Where rounds of one measurement differ by more than what
  // it tells apart, they do not know what would have been right.
  double resolved_right_share = 0;
  uint32_t resolved_count = 0;
};

// What would be chosen at a point; nothing: no primitive is offered.
using Chooser = absl::FunctionRef<std::optional<Primitive>(
    const std::string& fabric, uint32_t query_rows, uint64_t tokens, uint32_t steps)>;

// One entry a fabric that routes were measured over, in order of first appearance. A point of the
// grid is each (query rows, tokens) whose route was measured, at each of `steps`; fetch and local
// are complete with the attention here (kHere) of the same point, `layers` of them a step.
std::vector<FabricFindings> FindingsOf(std::span<const Sample> samples, uint32_t layers,
                                       std::span<const uint32_t> steps, Chooser chooser);

// Where a curve of latency over 1, 2, 4, ... at once turns: the last count whose latency is at most
// twice that of one. 0: nothing was measured.
uint32_t Elbow(std::span<const Sample> samples, Sweep sweep, const std::string& fabric);

// How a curve over 1, 2, 3, ... at once grows: the latency at the most of them over that of one.
struct SweepGrowth {
  double ratio = 0;       // 0: nothing was measured
  uint32_t parallel = 0;  // the most
};
SweepGrowth GrowthOf(std::span<const Sample> samples, Sweep sweep, const std::string& fabric);

}  // namespace ckv
