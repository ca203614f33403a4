// The folder of a plan's files.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/plan/csv_file.h"

namespace ckv::ctl {

struct PlanScript {
  std::string name;
  std::string_view text;
};

// Writes plan.json, the CSV files and the script to `folder`, which is made if need be, and runs
// the script, which draws plan.html. Returns the names of the files for people. If nothing can be
// drawn, prints how to draw later.
//   Errors as OutputFile (store/formats/output_file.h) and MakeFolder.
absl::StatusOr<std::string> WritePlanFolder(const Ctl& ctl, const std::string& folder,
                                            const Json& json, const std::vector<CsvFile>& tables,
                                            const PlanScript& script);

}  // namespace ckv::ctl
