// A reload of the configuration of a daemon that runs: SIGHUP changes the options marked live.

#pragma once

#include <string>
#include <vector>

#include "server/daemon/config.h"

namespace ckv {

struct ReloadReport {
  std::vector<std::string> changed;        // "log.level: info is now debug"
  std::vector<std::string> needs_restart;  // "store.capacity: 1GiB, and 2GiB in the configuration"
};

// Takes the live options of `wanted` into `config`. The others stay; the report names those that
// differ.
ReloadReport TakeLiveOptions(const Config& wanted, Config& config);

}  // namespace ckv
