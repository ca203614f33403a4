// What the network between this requester and its holders costs, as its operator tells it: the tier
// of each holder, and of each tier its bandwidth, latency and congestion.
//
// Source: arXiv:2606.03910 section III-E. Two sources speak it: a file (client/oracle_file.h) and
// an OracleService (client/oracle_stub.h).
//
//   ckv::NetworkOracle oracle(std::make_unique<ckv::OracleFile>("/etc/ckv/network.json"), options);
//   CKV_RETURN_IF_ERROR(oracle.Refresh());  // optional: know before the first question
//   oracle.Start();
//   requester_options.oracle = &oracle;

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cost_model.h"
#include "proto/clock.h"

namespace ckv {

// The paper has four tiers (node, rack, pod, fabric); more fit a deeper network.
inline constexpr uint32_t kTierCountMax = 16;
inline constexpr uint32_t kOracleHostCountMax = 1u << 16;
inline constexpr uint32_t kOracleNameBytesMax = 256;  // of a tier or a host
inline constexpr double kTierBandwidthMax = 1e15;     // bytes per second
inline constexpr double kTierLatencyMaxUs = 1e7;

struct TierCost {
  std::string name;                  // for people
  double bandwidth_bytes_per_s = 0;  // above 0
  double latency_us = 0;             // one way
  double congestion = 0;             // [0, 1), of traffic other than this system's
};

// One answer, whole; immutable once published.
struct NetworkSnapshot {
  std::vector<TierCost> tiers;                              // nearest first
  absl::flat_hash_map<std::string, uint32_t> tier_of_host;  // from the requester to each holder's
  Instant taken;                                            // when its congestion was true

  // The way to `host`; nothing where the operator did not tell. Congestion that is older than
  // `congestion_age_max` is left out: tiers, which do not age, do most of the work (section VI-F
  // found no difference up to 60 s, and the ranking stands within StalenessTolerance).
  std::optional<PathCost> Find(std::string_view host, Instant now,
                               Duration congestion_age_max) const;
};

// What came from outside, against the limits above.
//   InvalidArgument     names the field: "tiers[2].congestion: 1.5 is not within [0, 1)".
absl::Status ValidateSnapshot(const NetworkSnapshot& snapshot);

// Where snapshots come from. Thread-safe.
class OracleSource {
 public:
  virtual ~OracleSource() = default;
  // The costs from `requester_host` to each of `holder_hosts` that it knows. `taken` is set from
  // `clock`, less the age of what it tells. Does not outlast the deadline by much.
  //   InvalidArgument     what it read is not what it should be; names the field.
  //   Unavailable, NotFound  it cannot be read now.
  virtual absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                               const std::vector<std::string>& holder_hosts,
                                               Clock& clock, Instant deadline) = 0;
  // For errors and logs: "oracle file /etc/ckv/network.json".
  virtual std::string Describe() const = 0;
};

struct NetworkOracleOptions {
  std::string requester_host;  // this requester's, as the source names it
  Clock* clock = Clock::Real();
  Duration period = std::chrono::seconds(1);   // between two readings (section V-B)
  Duration timeout = std::chrono::seconds(1);  // of one
  Duration congestion_age_max = std::chrono::seconds(60);
};

// Keeps the last snapshot fresh on a thread of its own. Thread-safe; no question waits for the
// network or a file: it looks at what is there, under a lock as long as copying a pointer.
class NetworkOracle {
 public:
  NetworkOracle(std::unique_ptr<OracleSource> source, NetworkOracleOptions options);
  // Ends the thread: waits for a reading in progress, so up to its timeout.
  ~NetworkOracle();
  NetworkOracle(const NetworkOracle&) = delete;
  NetworkOracle& operator=(const NetworkOracle&) = delete;

  // Reads on a thread from now on, every period and whenever a new host is asked for. Once.
  void Start();

  // Reads now, on the caller's thread; what was known stays if that fails, or is newer.
  // Errors as OracleSource::Read, with the source's name.
  absl::Status Refresh() ABSL_LOCKS_EXCLUDED(mu_);

  // Null before the first reading.
  std::shared_ptr<const NetworkSnapshot> Snapshot() const ABSL_LOCKS_EXCLUDED(mu_);

  // The way to the holder on `host`; nothing before it is known. A host that was never asked for is
  // part of the next reading. `in_flight` of the result is the caller's to fill.
  std::optional<PathCost> PathTo(std::string_view host) ABSL_LOCKS_EXCLUDED(mu_);

  const NetworkOracleOptions& options() const { return options_; }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void LogChange(const absl::Status& status);

  const NetworkOracleOptions options_;
  const std::unique_ptr<OracleSource> source_;

  mutable absl::Mutex mu_;
  std::shared_ptr<const NetworkSnapshot> snapshot_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::string> wanted_ ABSL_GUARDED_BY(mu_);  // hosts that were asked for
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool failing_ = false;  // of the thread: said once a break
  std::thread thread_;
};

// "10.0.0.7" of "10.0.0.7:7401", "::1" of "[::1]:7401"; all of it where there is no port.
std::string_view HostOfAddress(std::string_view address);

}  // namespace ckv
