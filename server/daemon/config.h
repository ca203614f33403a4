// The configuration of a ckvd: one table of options. Flags override CKV_* environment variables,
// and both override a YAML file. Each option has three names, for example:
//
//   store.capacity        key in the file, nested or dotted
//   CKV_STORE_CAPACITY    environment variable
//   --store-capacity      flag; '_' and '.' in it are read as '-'
//
// If `listen` is not set, it follows from the roles (client/grpc/default_addresses.h).
//
// All three sources supply text to the same parser, so they accept the same values.

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

// The options with their defaults. The table in config_options.cc, which --help prints, explains
// each of them.
struct Config {
  std::vector<std::string> role;
  std::string name;    // if empty, set by FillConfig
  std::string listen;  // if empty, set by FillConfig
  std::string advertise;
  std::string label_host;  // if empty, set by FillConfig
  std::string label_rack;
  std::string label_zone;
  std::string directory;       // host:port, or a list of several
  std::string directory_path;  // if this and the next are empty, the state is in memory
  std::string directory_store;
  std::string data_listen;  // if empty, set by FillConfig
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
  // Checks a terabyte in 17 hours (server/upkeep/scrubber.h). If 0, there is no scrubbing.
  uint64_t store_scrub_bytes_per_second = uint64_t{16} << 20;
  // The percentage of store.capacity that copies may use. If 0, no copies are made.
  uint32_t replicas_percent = 25;
  // Copies that the directory orders.
  uint64_t repair_bytes_per_second = uint64_t{64} << 20;
  uint32_t repair_flow_count = 2;
  Duration repair_loss_after = std::chrono::minutes(5);
  Duration repair_drop_after = std::chrono::hours(1);
  std::string repair_fill_new_holders = "on";
  std::string repair_copy_hot_chunks = "on";
  Duration directory_expiry_grace = std::chrono::minutes(1);
  uint32_t compute_threads = 1;
  std::string kernel_target = std::string(kKernelTargetAuto);
  std::string backend = "auto";
  uint32_t session_count_max = 256;
  uint32_t batch_request_count_max = 64;
  uint32_t queue_request_count_max = 1024;
  uint64_t store_map_bytes_max = 0;
  uint32_t store_shadow_percent = 0;  // percentage of store.capacity; if 0, there are no shadows
  uint32_t store_stripe_percent = 3;  // the same, as StripeBytesMax; if 0, no stripes are kept
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
  uint64_t requester_local_cache_bytes = uint64_t{1} << 30;
  std::string oracle_file;
  std::string oracle_address;
  std::string oracle_host;
  std::string metrics_address;  // if empty, no metrics are served
  std::string log_level = "info";
  std::string log_format = "text";
  std::string trace_path;  // if empty, no spans are written
  uint64_t trace_file_bytes_max = uint64_t{64} << 20;
  uint32_t trace_sample_one_in = 0;  // if 0, no traces are sampled
  std::string ready_file;

  bool HasRole(std::string_view wanted) const;
};

// Returns the shape of a requester's lanes, from the lane.* options.
LaneShape LaneShapeOf(const Config& config);

// Fills in empty options that are derived from others: `listen` from the roles, `data_listen` from
// `listen`, and `label_host` from the machine. Derives `name` from the host name, the roles and the
// port of `listen`. If that port is 0, the port is not known yet and `name` stays empty.
void FillConfig(Config& config);

enum class ConfigAction { kRun, kPrint };

struct ParsedConfig {
  Config config;
  ConfigAction action = ConfigAction::kRun;
  std::string text;  // for kPrint, the output of --help, --version or --check-config
  // Settings that are valid but probably a mistake.
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // log lines that are not warnings
};

using EnvironmentLookup = absl::FunctionRef<std::optional<std::string>(const std::string& name)>;

// Reads the configuration. `arguments` excludes the program name. --config or CKV_CONFIG names the
// file. `environment_names` has the names of all variables that are set. Each unknown CKV_* name
// among them gets a warning.
//   InvalidArgument     every error found, one per line, each with its source:
//                       "ckvd.yaml:12: store.capacity: ...".
absl::StatusOr<ParsedConfig> ReadConfig(std::span<const std::string> arguments,
                                        EnvironmentLookup environment,
                                        std::span<const std::string> environment_names = {});

// Returns `config` as a complete file for ReadConfig. `sources` (by key) are written as comments.
std::string ConfigToYaml(const Config& config,
                         const std::map<std::string, std::string>& sources = {});

}  // namespace ckv
