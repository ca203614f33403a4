// Judges a machine that runs ckv daemons, or will: memory, processors, clock, ports and RDMA
// devices. The settings of the daemons determine what they need.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/doctor/check.h"
#include "client/ctl/doctor/daemon_settings.h"
#include "client/ctl/doctor/host_daemons.h"
#include "client/ctl/doctor/host_files.h"
#include "proto/base/clock.h"

namespace ckv::ctl::doctor {

// This machine's clock, as the kernel reports it.
struct ClockSync {
  bool known = false;
  bool synchronised = false;  // by a time service
  Duration error_max{0};      // that service's estimate
};
ClockSync ReadClockSync();

struct HostView {
  HostFiles files;
  std::vector<HostDaemon> daemons;  // those that run
  // The settings of a named configuration with which no daemon runs yet.
  std::optional<DaemonSettings> planned;
  ClockSync clock;

  // Returns the settings of all daemons, and the planned ones.
  std::vector<const DaemonSettings*> AllSettings() const;
};

// Reads the state of the machine whose files are below `root` ("" for this one). `config_path` is a
// configuration file of ckvd, or empty.
//   NotFound, InvalidArgument  as ReadSettingsFile.
absl::StatusOr<HostView> LookAtHost(const std::string& root, const std::string& config_path,
                                    const ClockSync& clock);

// Runs all of the checks below.
Part JudgeHost(const HostView& view);

// memory, huge_pages, thp, swap, memlock, nofile
Checks JudgeMemory(const HostView& view);
// spin, numa, clock, binary
Checks JudgeProcessors(const HostView& view);
// rdma, gid
Checks JudgeRdma(const HostView& view);
// ports, names
Checks JudgePorts(const HostView& view);

// The share of a machine's memory above which its daemons leave too little for the rest.
inline constexpr double kMemoryShareMax = 0.95;
// Descriptors of one session: two for each of its lanes. Engines mostly have one or two lanes.
inline constexpr uint64_t kFilesPerSession = 4;
// Descriptors of a daemon without sessions: those of its server, its store and its log.
inline constexpr uint64_t kFilesOfDaemon = 128;

}  // namespace ckv::ctl::doctor
