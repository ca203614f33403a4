#include "client/tools/ctl/doctor/host_daemons.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/host/control_groups.h"

namespace ckv::ctl::doctor {
namespace {

// The words of a file whose words end with a zero byte.
std::vector<std::string> ZeroEnded(const std::string& text) {
  return absl::StrSplit(text, '\0', absl::SkipEmpty());
}

void ReadGroups(const HostFiles& files, uint32_t pid, HostDaemon& daemon) {
  const GroupLimits limits = ReadGroupLimits(files.root(), std::to_string(pid));
  if (limits.memory_bytes != kNoGroupLimit) daemon.memory_bytes_max = limits.memory_bytes;
  if (limits.processors > 0) daemon.processor_time_max = limits.processors;
}

std::string OriginOf(const std::string& name, uint32_t pid) {
  return absl::StrFormat("%s (pid %d)", name.empty() ? "ckvd" : name, pid);
}

void ReadSettings(const HostFiles& files, const std::string& process, HostDaemon& daemon) {
  SettingValues own, values;
  const auto variables = files.Read(process + "/environ");
  daemon.settings_are_partial = !variables;
  if (variables) AddVariables(ZeroEnded(*variables), own);
  if (const auto line = files.Read(process + "/cmdline")) AddFlags(ZeroEnded(*line), own);
  if (const auto config = own.find("config"); config != own.end()) {
    std::string path = config->second;
    if (!path.starts_with("/")) path = files.Link(process + "/cwd").value_or("") + "/" + path;
    values = ReadSettingsFile(path).value_or(SettingValues());
    daemon.config_path = path;
  }
  for (const auto& [flag, value] : own) values[flag] = value;
  daemon.settings = SettingsOf(values, "");
  daemon.settings.origin = OriginOf(daemon.settings.name, daemon.pid);
}

HostDaemon ReadDaemon(const HostFiles& files, uint32_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  HostDaemon daemon;
  daemon.pid = pid;
  ReadSettings(files, process, daemon);
  if (const auto list = files.ReadLine(process + "/status", "Cpus_allowed_list:"))
    daemon.processors = ListedNumbers(*list);
  ReadGroups(files, pid, daemon);
  return daemon;
}

}  // namespace

double HostDaemon::ProcessorTime() const {
  const auto count = static_cast<double>(processors.size());
  return processor_time_max ? std::min(*processor_time_max, count > 0 ? count : 1e9) : count;
}

std::vector<HostDaemon> FindDaemons(const HostFiles& files) {
  std::vector<uint32_t> pids;
  for (const std::string& name : files.List("/proc")) {
    const auto pid = LeadingNumber(name);
    if (pid && files.Read("/proc/" + name + "/comm") == "ckvd")
      pids.push_back(static_cast<uint32_t>(*pid));
  }
  std::sort(pids.begin(), pids.end());
  pids.resize(std::min(pids.size(), kHostDaemonCountMax));
  std::vector<HostDaemon> daemons;
  for (const uint32_t pid : pids) daemons.push_back(ReadDaemon(files, pid));
  return daemons;
}

}  // namespace ckv::ctl::doctor
