// The settings of a ckvd that ckvctl doctor judges: from its configuration file, its environment
// and its flags, of which later ones win. ckvd itself checks them (server/daemon/config.h); what it
// would refuse is passed over here.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ckv::ctl::doctor {

inline constexpr std::string_view kDefaultConfigPath = "/etc/ckv/ckvd.yaml";

// Values by flag, without its dashes: "store-capacity".
using SettingValues = std::map<std::string, std::string>;

// Reads a file of keys, nested or dotted.
//   NotFound            there is no such file.
//   InvalidArgument     it cannot be read, or it is no YAML; names the line.
absl::StatusOr<SettingValues> ReadSettingsFile(const std::string& path);
// Adds the values of flags: "--name=h1" or "--name", "h1".
void AddFlags(const std::vector<std::string>& arguments, SettingValues& values);
// Adds the values of CKV_* variables: "CKV_NAME=h1".
void AddVariables(const std::vector<std::string>& variables, SettingValues& values);

// Fields have the defaults of ckvd.
struct DaemonSettings {
  std::string origin;  // whose settings they are, for people: "h1 (pid 812)", "/etc/ckv/ckvd.yaml"
  std::vector<std::string> roles;
  std::string name, listen, directory_path, store_path;
  uint64_t store_capacity_bytes = uint64_t{1} << 30;
  uint64_t store_map_bytes_max = 0;
  uint64_t requester_local_cache_bytes = uint64_t{1} << 30;
  uint32_t store_stripe_percent = 3;
  uint32_t compute_threads = 1;
  uint32_t spin_us = 50;

  // Without any role, as in a file for all daemons of a machine, it may have each.
  bool MayHave(std::string_view role) const;
  // Memory that it takes when its stores are full.
  uint64_t MemoryBytes() const;
  // Threads that poll while there is work (ADR 0008).
  uint32_t SpinningThreads() const;
};

DaemonSettings SettingsOf(const SettingValues& values, std::string origin);

}  // namespace ckv::ctl::doctor
