// What a ckvd is told: one table of options, read from flags over CKV_* environment over a YAML
// file.
//
//   store.capacity    is the key in the file (nested or dotted),
//   CKV_STORE_CAPACITY    its environment variable,
//   --store-capacity      its flag ('_' and '.' are taken for '-').
//
// The address to listen on follows from the roles where it is not given: client/ctl looks there.
//
// Every value of every source is text that one parser reads, so the three can't differ.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "transport/fabric.h"

namespace ckv {

inline constexpr std::string_view kCkvdVersion = "0.1.0";

inline constexpr uint32_t kVerbsGidIndexAuto = 256;  // one more than there can be

// The options, with their defaults. What each means is in the table in config_options.cc, which
// --help prints.
struct Config {
  std::vector<std::string> role;
  std::string name;
  std::string listen;  // empty: what ReadConfig takes for the roles
  std::string advertise;
  std::string directory;
  std::string data_listen = "127.0.0.1:0";
  std::vector<std::string> fabrics = {"shm", "tcp"};
  std::string fabric = "auto";
  std::string rdma_fallback = "refuse";
  std::string verbs_device;
  uint32_t verbs_port = 1;
  uint32_t verbs_gid_index = kVerbsGidIndexAuto;
  uint32_t verbs_mtu = 0;
  uint32_t verbs_timeout = 14;
  uint32_t verbs_retry_count = 6;
  uint32_t tcp_busy_poll_us = 0;
  std::string store_path;  // empty: in memory only
  std::string store_pages = "auto";
  uint64_t store_capacity_bytes = uint64_t{1} << 30;
  uint32_t store_chunk_count_max = 1u << 17;
  // A terabyte in 17 hours (server/scrubber.h); 0: none.
  uint64_t store_scrub_bytes_per_second = uint64_t{16} << 20;
  // Of store.capacity, in per cent; 0: none.
  uint32_t replicas_percent = 25;
  uint32_t compute_threads = 1;
  uint32_t session_count_max = 256;
  uint32_t batch_request_count_max = 64;
  uint32_t queue_request_count_max = 1024;
  uint64_t store_map_bytes_max = 0;
  uint32_t store_shadow_percent = 0;  // of store.capacity; 0: no shadows
  uint32_t spin_us = 50;
  uint32_t lane_slot_count = LaneShape{}.slot_count;
  uint64_t lane_request_bytes_max = LaneShape{}.request_bytes_max;
  uint64_t lane_reply_bytes_max = LaneShape{}.reply_bytes_max;
  uint32_t engine_count_max = 16;
  uint32_t rpc_thread_count_max = 256;
  Duration lease_ttl = std::chrono::seconds(3);
  Duration drain_timeout = std::chrono::seconds(10);
  uint32_t default_timeout_ms = 5000;
  std::string requester_profile;
  std::string oracle_file;
  std::string oracle_address;
  std::string oracle_host;
  std::string metrics_address;  // empty: none are served
  std::string log_level = "info";
  std::string ready_file;

  bool HasRole(std::string_view wanted) const;
};

enum class ConfigAction { kRun, kPrint };

struct ParsedConfig {
  Config config;
  ConfigAction action = ConfigAction::kRun;
  std::string text;  // kPrint: what --help, --version or --check-config answers
};

using EnvironmentLookup = absl::FunctionRef<std::optional<std::string>(const std::string& name)>;

// `arguments` without the program's name. Reads the file that --config or CKV_CONFIG names.
//   InvalidArgument     every error found, one a line, each with its source:
//                       "ckvd.yaml:12: store.capacity: ...".
absl::StatusOr<ParsedConfig> ReadConfig(std::span<const std::string> arguments,
                                        EnvironmentLookup environment);

// The whole of `config` as a file that ReadConfig takes. `sources` (by key) become comments.
std::string ConfigToYaml(const Config& config,
                         const std::map<std::string, std::string>& sources = {});

}  // namespace ckv
