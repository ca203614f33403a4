// Judges a machine that runs ckv daemons, or will: its memory, its processors, and what a restart
// loses. The settings of the daemons determine what they need.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/tools/ctl/doctor/check.h"
#include "client/tools/ctl/doctor/daemon_settings.h"
#include "client/tools/ctl/doctor/host_daemons.h"
#include "client/tools/ctl/doctor/host_files.h"

namespace ckv::ctl::doctor {

struct HostView {
  HostFiles files;
  std::vector<HostDaemon> daemons;  // those that run
  // The settings of a named configuration with which no daemon runs yet.
  std::optional<DaemonSettings> planned;

  // Returns the settings of all daemons, and the planned ones.
  std::vector<const DaemonSettings*> AllSettings() const;
  // "16 processors, 62.7 GiB of memory, 2 ckvd".
  std::string Title() const;
};

// Reads the state of the machine whose files are below `root` ("" for this one). `config_path` is a
// configuration file of ckvd, or empty.
//   NotFound, InvalidArgument  as ReadSettingsFile.
absl::StatusOr<HostView> LookAtHost(const std::string& root, const std::string& config_path);

// Runs all of the checks: memory, spin, durable.
Checks JudgeHost(const HostView& view);

// The share of a machine's memory above which its daemons leave too little for the rest.
inline constexpr double kMemoryShareMax = 0.95;

}  // namespace ckv::ctl::doctor
