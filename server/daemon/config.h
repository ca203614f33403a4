// The configuration of a ckvd: one table of options. Flags override CKV_* environment variables,
// and both override a YAML file.
//
//   store.capacity    is the key in the file (nested or dotted),
//   CKV_STORE_CAPACITY    its environment variable,
//   --store-capacity      its flag ('_' and '.' are taken for '-').
//
// If `listen` is not set, it follows from the roles (client/grpc/default_addresses.h).
//
// All sources give text that one parser reads, so the three cannot differ.

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
#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv {

inline constexpr std::string_view kKernelTargetAuto = "auto";
inline constexpr uint32_t kVerbsGidIndexAuto = 256;  // one more than the highest index

// The options with their defaults. The table in config_options.cc explains each, and --help prints
// it.
struct Config {
  std::vector<std::string> role;
  std::string name;    // if empty, as FillConfig says
  std::string listen;  // if empty, as FillConfig says
  std::string advertise;
  std::string directory;
  std::string directory_path;  // if empty, a directory keeps its state in memory
  std::string data_listen;     // if empty, as FillConfig says
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
  std::string store_path;  // if empty, chunks are in memory only
  std::string store_pages = "auto";
  uint64_t store_capacity_bytes = uint64_t{1} << 30;
  uint32_t store_chunk_count_max = 1u << 17;
  // A terabyte in 17 hours (server/upkeep/scrubber.h). If 0, there is no scrubbing.
  uint64_t store_scrub_bytes_per_second = uint64_t{16} << 20;
  // A percentage of store.capacity. If 0, there are no copies.
  uint32_t replicas_percent = 25;
  uint32_t compute_threads = 1;
  std::string kernel_target = std::string(kKernelTargetAuto);
  std::string backend = "auto";
  uint32_t session_count_max = 256;
  uint32_t batch_request_count_max = 64;
  uint32_t queue_request_count_max = 1024;
  uint64_t store_map_bytes_max = 0;
  uint32_t store_shadow_percent = 0;  // percentage of store.capacity; 0 for no shadows
  uint32_t store_stripe_percent = 3;  // the same, as StripeBytesMax; 0 to keep no stripes
  uint32_t spin_us = 50;
  uint32_t lane_slot_count = LaneShape{}.slot_count;
  uint64_t lane_request_bytes_max = LaneShape{}.request_bytes_max;
  uint64_t lane_reply_bytes_max = LaneShape{}.reply_bytes_max;
  uint32_t call_count_max = 16;
  uint32_t rpc_thread_count_max = 256;
  Duration lease_ttl = std::chrono::seconds(3);
  Duration drain_timeout = std::chrono::seconds(10);
  Duration default_timeout = std::chrono::seconds(5);
  std::string requester_profile;
  uint64_t requester_near_bytes = uint64_t{1} << 30;
  std::string oracle_file;
  std::string oracle_address;
  std::string oracle_host;
  std::string metrics_address;  // if empty, no metrics are served
  std::string log_level = "info";
  std::string log_format = "text";
  std::string trace_path;  // if empty, no spans are written
  uint64_t trace_file_bytes_max = uint64_t{64} << 20;
  uint32_t trace_sample_one_in = 0;  // if 0, none
  std::string ready_file;

  bool HasRole(std::string_view wanted) const;
};

// Returns the shape of a requester's lanes, by the lane.* options.
LaneShape LaneShapeOf(const Config& config);

// Fills in empty options that follow from others: `listen` from the roles, `data_listen` from
// `listen`. `name` follows from the host, the roles and the port of `listen`. It stays empty while
// that port is 0, which stands for a port not known yet.
void FillConfig(Config& config);

enum class ConfigAction { kRun, kPrint };

struct ParsedConfig {
  Config config;
  ConfigAction action = ConfigAction::kRun;
  std::string text;  // for kPrint, the answer of --help, --version or --check-config
  // Settings that are valid but probably a mistake.
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // lines for the log that warn of nothing
};

using EnvironmentLookup = absl::FunctionRef<std::optional<std::string>(const std::string& name)>;

// Reads the configuration. `arguments` has no program name. --config or CKV_CONFIG names the file.
// `environment_names` has all variables that are set; a warning names each one of ckvd's that has
// no meaning.
//   InvalidArgument     every error found, one per line, each with its source:
//                       "ckvd.yaml:12: store.capacity: ...".
absl::StatusOr<ParsedConfig> ReadConfig(std::span<const std::string> arguments,
                                        EnvironmentLookup environment,
                                        std::span<const std::string> environment_names = {});

// Returns `config` as a complete file for ReadConfig. `sources` (by key) become comments.
std::string ConfigToYaml(const Config& config,
                         const std::map<std::string, std::string>& sources = {});

}  // namespace ckv
