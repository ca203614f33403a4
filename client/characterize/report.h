// A characterization as one HTML file: plots inline, no script, nothing from the network.

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
  // "name: value" lines for the head: what was measured, when, with which constants.
  std::vector<std::pair<std::string, std::string>> facts = {};
  uint32_t layers = 0;     // of the geometry: a fetch moves all of them, a step attends all
  uint32_t row_bytes = 0;  // of one token and layer
  std::span<const Sample> samples = {};
  std::span<const FabricFindings> findings = {};
};

// The whole file, UTF-8. Sections without samples are left out.
std::string RenderReport(const ReportInput& input);

}  // namespace ckv
