// Writes a characterization as one HTML file: inline plots, no script, nothing from the network.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/characterize/findings.h"
#include "client/characterize/sample.h"

namespace ckv {

struct ReportInput {
  std::string title;
  // "name: value" lines for the head: the subject, the time and the constants.
  std::vector<std::pair<std::string, std::string>> facts = {};
  uint32_t layers = 0;     // layers of the geometry; a fetch moves all, a step attends all
  uint32_t row_bytes = 0;  // one token and layer
  std::span<const Sample> samples = {};
  std::span<const FabricFindings> findings = {};
  std::span<const KernelCurve> kernels = {};
};

// Returns the whole file, UTF-8. Sections without samples are left out.
std::string RenderReport(const ReportInput& input);

}  // namespace ckv
