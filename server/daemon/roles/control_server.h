// The gRPC server of a daemon: its services, the health that it reports for each, and its
// addresses.

#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/daemon/roles/shared.h"
#include "server/listen/control_acceptor.h"
#include "server/rpc/leader_interceptor.h"

namespace ckv {

// Used by the daemon's thread.
class ControlServer {
 public:
  // Serves `services` at config.listen, and publishes the address for peers in `shared`. Everything
  // borrowed must outlive the server.
  //   Unavailable         the address cannot be bound; the message has the reason.
  //   ResourceExhausted   gRPC's server did not start.
  // `leader` is of the directory among the services; unset without one.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      DaemonShared* shared, const std::vector<grpc::Service*>& services, int message_bytes_max,
      LeaderSource leader);
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // The address as peers get it, and as this process reaches it.
  const std::string& address() const { return address_; }
  const std::string& local_address() const { return local_address_; }

  // Makes the service known to health checks, as not serving. "" is the whole process.
  void AddHealth(const std::string& service);
  // Sets the health of a service that AddHealth made known.
  void SetHealth(const std::string& service, bool serving);
  bool serving(const std::string& service) const;
  // Reports every service as not serving from now on.
  void EndHealth();

  // Closes connections, and gives calls in progress `grace`.
  void Shutdown(Duration grace);

 private:
  ControlServer() = default;

  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ControlAcceptor> acceptor_;  // hands connections to `server_`
  std::string address_;
  std::string local_address_;
  std::map<std::string, bool> serving_;  // by service
};

}  // namespace ckv
