// Finds the ckv daemons that run on this machine, using /proc.

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

// The most daemons that are examined.
inline constexpr size_t kHostDaemonCountMax = 256;

// Unknown fields are unset, mostly because the process belongs to another user.
struct HostDaemon {
  uint32_t pid = 0;
  DaemonSettings settings;
  // Names like "net:[4026531840]"; empty if unknown.
  std::string network_namespace, mount_namespace;
  std::string config_path;                    // the file of --config or CKV_CONFIG; empty if none
  std::optional<uint64_t> memlock_bytes_max;  // kUnlimited also if locking is not limited
  std::optional<uint64_t> file_count_max;
  std::optional<uint64_t> file_count;        // open descriptors
  std::optional<uint64_t> memory_bytes_max;  // the least limit of its control groups
  std::optional<uint64_t> swapped_bytes;
  std::vector<uint32_t> processors;          // those it may run on; empty if unknown
  std::optional<double> processor_time_max;  // processor-seconds per second, by its control group
  bool binary_replaced = false;              // the program's file was replaced
  bool settings_are_partial = false;         // the environment cannot be read

  // Returns the processor-seconds per second that it may use, or 0 if unknown.
  double ProcessorTime() const;
};

// Returns the processes named ckvd, in the order of their pids.
std::vector<HostDaemon> FindDaemons(const HostFiles& files);

// Returns the soft limit of a process ("self", "812") by its name in /proc/PID/limits, for example
// "Max locked memory". Returns nothing if the limit cannot be read.
std::optional<uint64_t> SoftLimit(const HostFiles& files, const std::string& pid,
                                  const std::string& name);

// Returns the process that listens on a TCP port of this machine: "pid 77 (nginx)", or "a process"
// if it cannot be identified. Returns nothing if no process listens. `host` is the address to
// listen on; a wildcard conflicts with every other address.
std::optional<std::string> ListenerOf(const HostFiles& files, const std::string& host,
                                      uint16_t port);

}  // namespace ckv::ctl::doctor
