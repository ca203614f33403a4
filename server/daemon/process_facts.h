// The facts that this process tells operators of itself.

#pragma once

#include "proto/base/clock.h"
#include "proto/process_facts.h"
#include "server/daemon/config.h"

namespace ckv {

// Returns the facts as of now. `config` is filled (FillConfig); the process started at `started`.
ProcessFacts ProcessFactsOf(const Config& config, const Clock& clock, Instant started);

}  // namespace ckv
