// Finds the ckv daemons that run on this machine, using /proc.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/tools/ctl/doctor/daemon_settings.h"
#include "client/tools/ctl/doctor/host_files.h"

namespace ckv::ctl::doctor {

// The most daemons that are examined.
inline constexpr size_t kHostDaemonCountMax = 256;

// Unknown fields are unset, mostly because the process belongs to another user.
struct HostDaemon {
  uint32_t pid = 0;
  DaemonSettings settings;
  std::string config_path;                   // the file of --config or CKV_CONFIG; empty if none
  std::optional<uint64_t> memory_bytes_max;  // the least limit of its control groups
  std::vector<uint32_t> processors;          // those it may run on; empty if unknown
  std::optional<double> processor_time_max;  // processor-seconds per second, by its control group
  bool settings_are_partial = false;         // the environment cannot be read

  // Returns the processor-seconds per second that it may use, or 0 if unknown.
  double ProcessorTime() const;
};

// Returns the processes named ckvd, in the order of their pids.
std::vector<HostDaemon> FindDaemons(const HostFiles& files);

}  // namespace ckv::ctl::doctor
