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
  std::string answer;     // the first sentences (AnswerOf)
  std::string disturbed;  // unless empty, why there are no findings (DescribeDisturbances)
  // Names and values for the head of the page: date, build, machine, runs and constants.
  std::vector<std::pair<std::string, std::string>> facts;
  const Geometry* geometry = nullptr;
  uint32_t heads = 0;  // query rows of one token
  const Profile* profile = nullptr;
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
