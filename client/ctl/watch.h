// Runs a command again and again, as watch(1) does.

#pragma once

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/ctl/ctl.h"

namespace ckv::ctl {

// Adds --watch TIME to `verb`, which sets ctl.watch.
void AddWatch(CLI::App& verb, Ctl& ctl);

// Runs ctl.run every ctl.watch, until the process is interrupted, nobody reads the results, or
// ctl.watch_count_max runs are done. On a terminal each result takes the place of the one before.
// Errors are told by `tell`, and do not end it. Returns what the last run returned, untold.
absl::Status RunWatched(const Ctl& ctl, const std::function<void(const absl::Status&)>& tell);

}  // namespace ckv::ctl
