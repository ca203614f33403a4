// The cost of the network between this requester and its holders, as the operator describes it.
// Each holder has a tier. Each tier has a bandwidth, a latency and a congestion.
//
// Source: arXiv:2606.03910 section III-E. There are two OracleSources: a file
// (client/cost/oracle_file.h) and an OracleService (client/grpc/oracle_stub.h).
//
//   ckv::NetworkOracle oracle(std::make_unique<ckv::OracleFile>("/etc/ckv/network.json"), options);
//   CKV_RETURN_IF_ERROR(oracle.Refresh());  // optional: costs are known from the first call on
//   oracle.Start();
//   requester_options.oracle = &oracle;

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cost/cost_model.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"

namespace ckv {

// The paper has four tiers (node, rack, pod, fabric); a deeper network may have more.
inline constexpr uint32_t kTierCountMax = 16;
inline constexpr uint32_t kOracleHostCountMax = 1u << 16;
inline constexpr uint32_t kOracleNameBytesMax = 256;  // name of a tier or a host
inline constexpr double kTierBandwidthMax = 1e15;     // bytes per second
inline constexpr double kTierLatencyMaxUs = 1e7;

struct TierCost {
  std::string name;                  // shown to people
  double bandwidth_bytes_per_s = 0;  // above 0
  double latency_us = 0;             // one way
  // [0, 1): the share of the bandwidth taken by traffic other than this system's.
  double congestion = 0;
};

// One answer of a source, complete and immutable once published.
struct NetworkSnapshot {
  std::vector<TierCost> tiers;  // nearest first
  // The tier of the path from the requester to each holder's host.
  absl::flat_hash_map<std::string, uint32_t> tier_of_host;
  // When the congestion was measured.
  Instant taken;

  // Returns the path to `host`, or nothing if the operator did not describe it. Omits congestion
  // older than `congestion_age_max`. Tiers do not age, and they matter most: section VI-F found no
  // difference up to 60 s.
  std::optional<PathCost> Find(std::string_view host, Instant now,
                               Duration congestion_age_max) const;
};

// Checks a snapshot from outside the process against the limits above.
//   InvalidArgument     names the field: "tiers[2].congestion: 1.5 is not within [0, 1)".
absl::Status ValidateSnapshot(const NetworkSnapshot& snapshot);

// A source of snapshots. Thread-safe.
class OracleSource {
 public:
  virtual ~OracleSource() = default;
  // Returns the costs from `requester_host` to those of `holder_hosts` that the source knows.
  // `taken` is the time by `clock` less the age of the data. Returns soon after the deadline at the
  // latest.
  //   InvalidArgument     the data is malformed; names the field.
  //   Unavailable, NotFound  the data cannot be read now.
  virtual absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                               const std::vector<std::string>& holder_hosts,
                                               Clock& clock, Instant deadline) = 0;
  // Describes the source for errors and logs: "oracle file /etc/ckv/network.json".
  virtual std::string Describe() const = 0;
};

struct NetworkOracleOptions {
  std::string requester_host;  // this requester's host, as the source names it
  Clock* clock = Clock::Real();
  Duration period = std::chrono::seconds(1);   // time between two readings (section V-B)
  Duration timeout = std::chrono::seconds(1);  // limit of one reading
  Duration congestion_age_max = std::chrono::seconds(60);
};

// Refreshes the last snapshot on its own thread. Thread-safe. No query waits for the network or a
// file: it reads the last snapshot, under a lock held for one pointer copy.
class NetworkOracle {
 public:
  NetworkOracle(std::unique_ptr<OracleSource> source, NetworkOracleOptions options);
  // Ends the thread. Waits for a reading in progress, up to its timeout.
  ~NetworkOracle();
  NetworkOracle(const NetworkOracle&) = delete;
  NetworkOracle& operator=(const NetworkOracle&) = delete;

  // Starts the thread, which reads every period and when PathTo is first called for a host. Call it
  // once.
  void Start();

  // Reads now, on the caller's thread. Keeps the known snapshot if that fails or if the known one
  // is newer.
  //   Errors as OracleSource::Read, with the source's name.
  absl::Status Refresh() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the last snapshot, or null before the first reading.
  std::shared_ptr<const NetworkSnapshot> Snapshot() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the path to the holder on `host`, or nothing before it is known. A host that is new to
  // the oracle is part of the next reading. The caller fills `in_flight` of the result.
  std::optional<PathCost> PathTo(std::string_view host) ABSL_LOCKS_EXCLUDED(mu_);

  const NetworkOracleOptions& options() const { return options_; }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void LogChange(const absl::Status& status);

  const NetworkOracleOptions options_;
  const std::unique_ptr<OracleSource> source_;

  mutable absl::Mutex mu_;
  std::shared_ptr<const NetworkSnapshot> snapshot_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::string> wanted_ ABSL_GUARDED_BY(mu_);  // hosts passed to PathTo
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool failing_ = false;  // used by the thread; a failure is logged once
  Thread thread_;
};

// Returns InvalidArgument for a field of a snapshot: "hosts[a].tier: ...".
absl::Status RefuseOracle(const std::string& field, const std::string& why);

// Returns "10.0.0.7" for "10.0.0.7:7401" and "::1" for "[::1]:7401". An address that is not
// host:port is returned unchanged.
std::string HostOfAddress(std::string_view address);

}  // namespace ckv
