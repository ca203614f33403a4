// Runs a command repeatedly, like watch(1).

#pragma once

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/tools/ctl/ctl.h"

namespace ckv::ctl {

// Adds --watch TIME to `verb`, which sets ctl.watch.
void AddWatch(CLI::App& verb, Ctl& ctl);

// Runs ctl.run every ctl.watch, until the process is interrupted, the output cannot be written, or
// ctl.watch_count_max runs are done. On a terminal each result replaces the previous one. Reports
// each error through `report` and continues. Returns the last run's status without reporting it.
absl::Status RunWatched(const Ctl& ctl, const std::function<void(const absl::Status&)>& report);

}  // namespace ckv::ctl
