// Runs a fleet at several sizes and loads under each policy, and compares auto with the others.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/simulate/fleet_run.h"
#include "client/simulate/fleet_spec.h"

namespace ckv::ctl {

struct FleetScenario {
  FleetSpec spec;  // without nodes, load, policy and seed
  std::vector<uint32_t> nodes;
  std::vector<double> loads;  // 1 is 100 %
  std::vector<FleetPolicy> policies;
  uint32_t seeds = 1;
  uint64_t first_seed = 1;
  const FabricTree* topology = nullptr;  // must outlive the runs
};

struct FleetRow {
  uint32_t nodes = 0;
  double load = 0;
  FleetPolicy policy = FleetPolicy::kAuto;
  FleetStats mean;  // over the seeds; counts and bytes too
  std::vector<double> latency_ms_by_seed;
};

// Returns how many requests all runs have.
uint64_t FleetRequestCount(const FleetScenario& scenario);

// Simulates each size, load and policy with each seed. All policies have the same requests for the
// same seed. `done` is called for each request.
//   Errors of RunFleet.
absl::StatusOr<std::vector<FleetRow>> RunFleetScenario(const FleetScenario& scenario,
                                                       absl::FunctionRef<void()> done);

// Auto beside the best of the other policies, at one size and load. By the mean of the latency.
struct FleetComparison {
  uint32_t nodes = 0;
  double load = 0;
  FleetPolicy best = FleetPolicy::kRoute;
  double best_ms = 0, auto_ms = 0;
  double Ratio() const { return best_ms > 0 ? auto_ms / best_ms : 1; }
};
// Empty without auto, or with auto alone.
std::vector<FleetComparison> CompareFleet(const std::vector<FleetRow>& rows);

// The bar: auto is never more than 1.02 x the best other policy, and at least 10 % below it at
// three loads.
inline constexpr double kFleetRatioMax = 1.02, kFleetBetter = 0.90;
inline constexpr uint32_t kFleetBetterCountMin = 3;
struct FleetVerdict {
  uint32_t nodes = 0, loads = 0, better = 0;
  double worst_ratio = 0;
  bool Holds() const { return worst_ratio <= kFleetRatioMax && better >= kFleetBetterCountMin; }
};
// One for each size.
std::vector<FleetVerdict> JudgeFleet(const std::vector<FleetComparison>& comparisons);

}  // namespace ckv::ctl
