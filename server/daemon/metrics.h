// What this process tells Prometheus: GET /metrics, in its text format.
//
// Everything is read when it is asked for: counters that the parts keep anyway, one by one, and the
// short locks of tables that no query waits for. Nothing is asked of another process. Labels name
// what there is a limit of: fabrics, status codes, reasons, queues, roles, and the holders that a
// requester was ever sent to.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/requester.h"
#include "proto/clock.h"
#include "server/directory/directory_state.h"
#include "server/holder.h"
#include "server/registration.h"
#include "server/replica_keeper.h"

namespace ckv {

// The parts of this process; what it has not got is null. All must outlive the server.
struct MetricsSources {
  Clock* clock = Clock::Real();
  std::string version;
  DirectoryState* directory = nullptr;
  Holder* holder = nullptr;
  const Requester* requester = nullptr;
  const ReplicaKeeper* replicas = nullptr;
  // Of the requester's gRPC service; empty: it has none.
  std::function<uint64_t()> attend_count;
  std::function<uint64_t()> attend_error_count;
  std::function<bool()> directory_connected;
  std::vector<const Registration*> registrations;
};

// Thread-safe. Two threads of its own answer: a scrape that hangs leaves the other. Plain HTTP, and
// whoever reaches the address may read: names of holders and how busy they are, nothing of tenants.
class MetricsServer {
 public:
  // `address` is host:port; port 0 takes a free one.
  //   Unavailable         it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              MetricsSources sources);
  // Waits for scrapes in progress.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // As bound.
  const std::string& address() const { return address_; }

 private:
  struct State;
  MetricsServer(std::unique_ptr<State> state, std::string address);
  const std::unique_ptr<State> state_;
  const std::string address_;
};

}  // namespace ckv
