// The daemons of ckv that run on this machine, as /proc tells of them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/doctor/daemon_settings.h"
#include "client/ctl/doctor/host_files.h"

namespace ckv::ctl::doctor {

// A limit that is not set.
inline constexpr uint64_t kUnlimited = UINT64_MAX;

// More processes than this are not looked at.
inline constexpr size_t kHostDaemonCountMax = 256;

// Fields are left out if they are unknown, mostly because the process belongs to another user.
struct HostDaemon {
  uint32_t pid = 0;
  DaemonSettings settings;
  // Names like "net:[4026531840]"; empty if unknown.
  std::string network_namespace, mount_namespace;
  std::string config_path;  // the file of --config or CKV_CONFIG; empty if it has none
  std::optional<uint64_t> memlock_bytes_max;  // kUnlimited also if it may lock without limit
  std::optional<uint64_t> file_count_max;
  std::optional<uint64_t> file_count;        // descriptors that it has open
  std::optional<uint64_t> memory_bytes_max;  // the least of its control groups
  std::optional<uint64_t> swapped_bytes;
  std::vector<uint32_t> processors;          // that it may run on; empty if unknown
  std::optional<double> processor_time_max;  // processors' worth of time, by its control group
  bool binary_replaced = false;              // its program's file is another one now
  bool settings_are_partial = false;         // its environment cannot be read

  // Processors' worth of time that it may have, or 0 if unknown.
  double ProcessorTime() const;
};

// Returns the processes that are called ckvd, in the order of their pids.
std::vector<HostDaemon> FindDaemons(const HostFiles& files);

// Returns the soft limit of a process ("self", "812") by the name that /proc/PID/limits has for it:
// "Max locked memory". Nothing if it cannot be read.
std::optional<uint64_t> SoftLimit(const HostFiles& files, const std::string& pid,
                                  const std::string& name);

// Returns who listens on a TCP port of this machine: "pid 77 (nginx)", or "a process" if nothing
// tells more. Nothing if nobody listens. `host` is the address to listen on; a wildcard conflicts
// with every other.
std::optional<std::string> ListenerOf(const HostFiles& files, const std::string& host,
                                      uint16_t port);

}  // namespace ckv::ctl::doctor
