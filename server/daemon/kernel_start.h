// Settles the kernel target of a ckvd, before it has a thread that computes.

#pragma once

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckv {

// Takes the target that kernel_target names, or leaves the choice to measurement. Logs the target
// with the reason, once.
//   NotFound            this machine lacks the target; the message names those it has.
absl::Status SettleKernelTarget(const Config& config);

}  // namespace ckv
