#include "client/ctl/doctor/host_daemons.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/base/host_port.h"
#include "proto/host/control_groups.h"

namespace ckv::ctl::doctor {
namespace {

constexpr int kCapIpcLock = 14;  // linux/capability.h

// The words of a file whose words end with a zero byte.
std::vector<std::string> ZeroEnded(const std::string& text) {
  return absl::StrSplit(text, '\0', absl::SkipEmpty());
}

bool MayLock(const HostFiles& files, const std::string& process) {
  const auto text = files.ReadLine(process + "/status", "CapEff:");
  return text && (std::strtoull(text->c_str(), nullptr, 16) >> kCapIpcLock & 1) != 0;
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
  const std::string number = std::to_string(pid), process = "/proc/" + number;
  HostDaemon daemon;
  daemon.pid = pid;
  ReadSettings(files, process, daemon);
  daemon.memlock_bytes_max =
      MayLock(files, process) ? kUnlimited : SoftLimit(files, number, "Max locked memory");
  daemon.file_count_max = SoftLimit(files, number, "Max open files");
  const size_t open = files.List(process + "/fd").size();
  if (open > 0) daemon.file_count = open;
  if (const auto kilobytes = files.ReadField(process + "/status", "VmSwap:"))
    daemon.swapped_bytes = *kilobytes * 1024;
  if (const auto list = files.ReadLine(process + "/status", "Cpus_allowed_list:"))
    daemon.processors = ListedNumbers(*list);
  daemon.network_namespace = files.Link(process + "/ns/net").value_or("");
  daemon.mount_namespace = files.Link(process + "/ns/mnt").value_or("");
  const auto binary = files.Link(process + "/exe");
  daemon.binary_replaced = binary && binary->ends_with(" (deleted)");
  ReadGroups(files, pid, daemon);
  return daemon;
}

// A line of /proc/net/tcp: "0: 0100007F:1CE8 00000000:0000 0A ... uid timeout inode". Addresses are
// words of the machine's own byte order, in hexadecimal.
struct Listener {
  std::string host;
  uint16_t port = 0;
  std::string inode;
};

std::string HostOf(std::string_view hex) {
  std::array<uint32_t, 4> words = {};
  const size_t count = hex.size() / 8;
  if (hex.size() % 8 != 0 || (count != 1 && count != 4)) return "";
  for (size_t i = 0; i < count; ++i)
    std::from_chars(hex.data() + 8 * i, hex.data() + 8 * (i + 1), words[i], 16);
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(count == 1 ? AF_INET : AF_INET6, words.data(), text.data(), text.size());
  // As gRPC's servers listen: an IPv6 socket at an IPv4 address.
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view host = text.data();
  return std::string(host.starts_with(kMapped) ? host.substr(kMapped.size()) : host);
}

std::vector<Listener> ListenersOf(const HostFiles& files, std::string_view path) {
  std::vector<Listener> listeners;
  const auto text = files.Read(path);
  if (!text) return listeners;
  for (const auto& line : absl::StrSplit(*text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 10 || words[3] != "0A") continue;
    const size_t colon = words[1].find(':');
    if (colon == std::string::npos) continue;
    listeners.push_back(
        {HostOf(std::string_view(words[1]).substr(0, colon)),
         static_cast<uint16_t>(std::strtoul(words[1].c_str() + colon + 1, nullptr, 16)), words[9]});
  }
  return listeners;
}

std::string OwnerOf(const HostFiles& files, const std::string& inode) {
  const std::string wanted = "socket:[" + inode + "]";
  for (const std::string& pid : files.List("/proc")) {
    if (!LeadingNumber(pid)) continue;
    for (const std::string& fd : files.List("/proc/" + pid + "/fd")) {
      if (files.Link("/proc/" + pid + "/fd/" + fd) != wanted) continue;
      return absl::StrFormat("pid %s (%s)", pid,
                             files.Read("/proc/" + pid + "/comm").value_or("?"));
    }
  }
  return "a process of another user";
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

std::optional<uint64_t> SoftLimit(const HostFiles& files, const std::string& pid,
                                  const std::string& name) {
  const auto line = files.ReadLine("/proc/" + pid + "/limits", name);
  if (!line) return std::nullopt;
  return line->starts_with("unlimited") ? kUnlimited : LeadingNumber(*line);
}

std::optional<std::string> ListenerOf(const HostFiles& files, const std::string& host,
                                      uint16_t port) {
  const ckv::HostPort wanted{host, port};
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const Listener& listener : ListenersOf(files, path)) {
      if (listener.port != port) continue;
      const ckv::HostPort there{listener.host, port};
      if (there.IsWildcard() || wanted.IsWildcard() || listener.host == host ||
          (host == "localhost" && there.IsLoopback())) {
        return OwnerOf(files, listener.inode);
      }
    }
  }
  return std::nullopt;
}

}  // namespace ckv::ctl::doctor
