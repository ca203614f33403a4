// The figures of a characterization. A Python script with matplotlib draws them, also later.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/characterize/findings.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

// The text of figures.py.
extern const std::string_view kFiguresScript;

struct FiguresInput {
  // Names and values for the head of the page: the subject, the time and the constants.
  std::vector<std::pair<std::string, std::string>> facts;
  uint32_t layers = 0;     // layers of the geometry; a fetch moves all, a step attends all
  uint32_t row_bytes = 0;  // one token and layer
  std::span<const FabricFindings> findings;
  std::span<const KernelCurve> kernels;
};

// The findings of each fabric, without their grids.
Json FindingsJson(std::span<const FabricFindings> findings);

// Writes report.json and figures.py into a folder with samples.csv, and runs the script, which
// writes report.html. Returns false if this machine has no Python with matplotlib. Errors of
// WriteOutput.
//   Internal  the script failed; its reason is on stderr.
absl::StatusOr<bool> DrawFigures(const std::string& folder, const FiguresInput& input);

}  // namespace ckv::ctl
