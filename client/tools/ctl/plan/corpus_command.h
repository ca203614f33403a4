// ckvctl plan corpus.

#pragma once

#include "CLI/CLI.hpp"
#include "client/tools/ctl/ctl.h"

namespace ckv::ctl {

// Adds the verb to `plan`. Both must outlive the run.
void AddPlanCorpusCommand(CLI::App& plan, Ctl& ctl);

}  // namespace ckv::ctl
