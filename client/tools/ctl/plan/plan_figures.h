// The Python scripts that draw plans' plots.

#pragma once

#include <string_view>

namespace ckv::ctl {

// The text of plan_figures.py. It reads plan.json beside it, and writes plan.html.
extern const std::string_view kPlanFiguresScript;
// The text of corpus_figures.py, which does the same for plans of a corpus.
extern const std::string_view kCorpusFiguresScript;

}  // namespace ckv::ctl
