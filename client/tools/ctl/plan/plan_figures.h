// The Python script that draws a plan's plots.

#pragma once

#include <string_view>

namespace ckv::ctl {

// The text of plan_figures.py. It reads plan.json beside it, and writes plan.html.
extern const std::string_view kPlanFiguresScript;

}  // namespace ckv::ctl
