// Network oracles for several hosts, which read from one source on one thread. The directory has
// them, because it ranks on behalf of many hosts.

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cost/network_oracle.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"

namespace ckv {

// Thread-safe. No call waits for the network or a file.
class NetworkOracles {
 public:
  // Hosts with an oracle. A reading of 64 files of 65,536 hosts is the most that a period takes.
  static constexpr size_t kFromHostCountMax = 64;
  // An oracle that was not used for this long is dropped.
  static constexpr Duration kIdleMax = std::chrono::minutes(1);

  // `options.requester_host` is not used.
  NetworkOracles(std::unique_ptr<OracleSource> source, NetworkOracleOptions options);
  // Ends the thread. Waits for a reading in progress, up to its timeout.
  ~NetworkOracles();
  NetworkOracles(const NetworkOracles&) = delete;
  NetworkOracles& operator=(const NetworkOracles&) = delete;

  // Starts the thread, which reads every period and when From is first called for a host. Call it
  // once.
  void Start();

  // Returns the oracle of the paths from `host`. A new one is empty until the next reading. Returns
  // null if `host` is empty or too long, or kFromHostCountMax others are in use.
  std::shared_ptr<NetworkOracle> From(std::string_view host) ABSL_LOCKS_EXCLUDED(mu_);

  // Reads for all hosts now, on the caller's thread, and drops idle oracles. Returns the first
  // error; NotFound of one host does not end the reading, others do.
  absl::Status Refresh() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Used {
    std::shared_ptr<NetworkOracle> oracle;
    Instant at;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void DropIdle(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const NetworkOracleOptions options_;
  const std::shared_ptr<OracleSource> source_;

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Used> by_host_ ABSL_GUARDED_BY(mu_);
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool failing_ = false;  // used by the thread; a failure is logged once
  Thread thread_;
};

}  // namespace ckv
