// The figures of NetKV's tables II to V, each with the one simulated here.

#pragma once

#include <string>
#include <vector>

#include "client/tools/ctl/simulate/netkv_scenarios.h"

namespace ckv::ctl {

struct PaperCell {
  std::string table;  // "II"
  std::string name;   // "100 %, RR, TTFT ms"
  double paper = 0, here = 0;
  // Why they differ; empty if they differ by no more than kPaperDifferenceMax of the paper's.
  std::string reason;
};
inline constexpr double kPaperDifferenceMax = 0.15;

// Returns the cells of the tables whose scenarios are in `rows`: load, length, ablation, scale.
std::vector<PaperCell> CompareWithNetkv(const std::vector<NetkvRow>& rows);

}  // namespace ckv::ctl
