// The Python script that draws a simulation's plots.

#pragma once

#include <string_view>

namespace ckv::ctl {

// The text of simulate_figures.py. It reads simulation.json beside it, and writes simulation.html.
extern const std::string_view kSimulateFiguresScript;

}  // namespace ckv::ctl
