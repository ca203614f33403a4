// NetKV's seven experiments as scenarios: which runs each has, and their means over seeds.
//
// Source: arXiv:2606.03910 sections VI-C to VI-I.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/simulate/netkv_run.h"

namespace ckv::ctl {

// The names of the scenarios, in the order of the experiments. "tune" searches the weights of CLA*.
inline constexpr const char* kNetkvScenarios[] = {"load",    "length",   "topology", "staleness",
                                                  "sharing", "ablation", "scale",    "tune"};

// One row of a scenario's table: a policy at a setting.
struct NetkvCell {
  std::string scenario;
  size_t workload = 1;           // in kNetkvProfiles
  std::string setting;           // "load 100 %"
  double value = 0, second = 0;  // the setting as numbers; `second` is 0 if there is one alone
  DecodePolicy policy = DecodePolicy::kFull;
  // The run itself.
  double load = 1;
  double fixed_tokens = 0;
  double share_probability = -1;  // below 0: that of the workload
  CacheLoadWeights weights;
  FatTree tree;
  NetkvSystem system;
};
// Returns the cells of one scenario.
//   InvalidArgument     there is no scenario of that name; lists them.
absl::StatusOr<std::vector<NetkvCell>> CellsOf(const std::string& scenario);

struct NetkvOptions {
  uint32_t seeds = 10;
  uint64_t first_seed = 1;
  uint64_t requests = 0;  // if above 0, each run has so many instead of 20 s of them
  const std::vector<TraceRequest>* trace = nullptr;  // must outlive the runs
  bool own_prefixes = false;
  const FabricTree* topology = nullptr;  // instead of each cell's tree; must outlive the runs
};

struct NetkvRow {
  NetkvCell cell;
  NetkvStats mean;            // over the seeds; counts are sums
  double ttft_ms_stddev = 0;  // between the seeds
  std::vector<double> ttft_ms_by_seed;
};
// Simulates the cell with each seed. All policies see the same requests for the same seed.
//   InvalidArgument     RunNetkv's and TakeRequests' errors.
absl::StatusOr<NetkvRow> RunCell(const NetkvCell& cell, const NetkvOptions& options);

// Returns the row of the scenario with this workload, setting and policy, or null.
const NetkvRow* FindRow(const std::vector<NetkvRow>& rows, std::string_view scenario,
                        size_t workload, double value, DecodePolicy policy);

}  // namespace ckv::ctl
