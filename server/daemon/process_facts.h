// The facts that this process reports about itself to operators.

#pragma once

#include "proto/base/clock.h"
#include "proto/process_facts.h"

namespace ckv {

// Returns the facts as of now. The process started at `started`.
ProcessFacts ProcessFactsOf(const Clock& clock, Instant started);

}  // namespace ckv
