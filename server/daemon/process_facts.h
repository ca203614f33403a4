// The facts that this process reports about itself to operators.

#pragma once

#include "proto/base/clock.h"
#include "proto/process_facts.h"
#include "server/daemon/config.h"

namespace ckv {

// Returns the facts as of now. `config` must be filled (FillConfig). The process started at
// `started`.
ProcessFacts ProcessFactsOf(const Config& config, const Clock& clock, Instant started);

}  // namespace ckv
