// Serves this process' metrics to Prometheus: GET /metrics, in its text format.
//
// Every value is read when it is asked for. Values are counters that the parts keep anyway, and
// contents of tables behind short locks that no query waits for. No other process is asked. Labels
// have a limited number of values: fabrics, status codes, reasons, queues, roles, and the holders
// that a requester was ever sent to.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/host_port.h"
#include "server/directory/directory_state.h"
#include "server/directory/log/change_log.h"
#include "server/directory/registration.h"
#include "server/holder/holder.h"
#include "server/upkeep/placement_keeper.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

// The parts of this process; a missing part is null. All must outlive the server.
struct MetricsSources {
  Clock* clock = Clock::Real();
  std::string version;
  std::string commit;
  std::string kernel;  // the kernel target
  DirectoryState* directory = nullptr;
  const ChangeLog* directory_log = nullptr;  // null if the directory keeps its state in memory
  Holder* holder = nullptr;
  const PlacementKeeper* placement = nullptr;
  const Requester* requester = nullptr;
  const ReplicaKeeper* replicas = nullptr;
  // Counters of the requester's gRPC service. If empty, there is no service.
  std::function<uint64_t()> attend_count;
  std::function<uint64_t()> attend_error_count;
  std::function<bool()> directory_connected;
  std::vector<const Registration*> registrations;
};

// Thread-safe. It answers on two threads of its own, so a scrape that hangs leaves the other. It is
// plain HTTP, readable by everyone who reaches the address. It names holders and how busy they are,
// and nothing about tenants.
class MetricsServer {
 public:
  // Listens on host:port; port 0 takes a free one. It shows nothing before Serve.
  //   Unavailable         it cannot listen on `address`.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address);
  // Shows the metrics of `sources` from now on. Call it once.
  void Serve(MetricsSources sources);
  // Waits for scrapes in progress.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Returns the address as bound.
  const std::string& address() const { return address_; }

 private:
  struct State;
  MetricsServer(std::unique_ptr<State> state, const HostPort& address);
  const std::unique_ptr<State> state_;
  const HostPort bound_;
  const std::string address_;
};

}  // namespace ckv
