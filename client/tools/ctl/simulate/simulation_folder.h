// The folder of a simulation's results: JSON, CSV files, and a page with plots.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

struct SimulationCsv {
  std::string name;
  std::string text;
};

// Writes simulation.json, the CSV files and simulation.html. Returns the names of those written.
//   Errors of MakeFolder, WriteOutput and DrawWithPython.
absl::StatusOr<std::string> WriteSimulation(const Ctl& ctl, const std::string& folder,
                                            const std::vector<SimulationCsv>& tables,
                                            const Json& json);

}  // namespace ckv::ctl
