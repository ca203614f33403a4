// Judges a machine that runs daemons of ckv, or will: its memory, processors, clock, ports and RDMA
// devices. The settings of the daemons say what they take.

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

// This machine's clock, as the kernel tells of it.
struct ClockSync {
  bool known = false;
  bool synchronised = false;  // by a service of time
  Duration error_max{0};      // as that service estimates
};
ClockSync ReadClockSync();

struct HostView {
  HostFiles files;
  std::vector<HostDaemon> daemons;  // that run
  // A configuration that was named and that no daemon runs with yet.
  std::optional<DaemonSettings> planned;
  ClockSync clock;

  // The settings of all daemons, and the planned ones.
  std::vector<const DaemonSettings*> AllSettings() const;
};

// Looks at the machine whose files are below `root` ("" for this one). `config_path` is empty, or a
// file of ckvd.
//   NotFound, InvalidArgument  as ReadSettingsFile.
absl::StatusOr<HostView> LookAtHost(const std::string& root, const std::string& config_path,
                                    const ClockSync& clock);

// All of the checks below.
Part JudgeHost(const HostView& view);

// memory, huge_pages, thp, swap, memlock, nofile
Checks JudgeMemory(const HostView& view);
// spin, numa, clock, binary
Checks JudgeProcessors(const HostView& view);
// rdma, gid
Checks JudgeRdma(const HostView& view);
// ports, names
Checks JudgePorts(const HostView& view);

// A share of a machine's memory above which its daemons leave too little for the rest.
inline constexpr double kMemoryShareMax = 0.95;
// Descriptors of one session: two for each of its lanes, of which engines mostly have one or two.
inline constexpr uint64_t kFilesPerSession = 4;
// Descriptors of a daemon without sessions: its server, its store, its log.
inline constexpr uint64_t kFilesOfDaemon = 128;

}  // namespace ckv::ctl::doctor
