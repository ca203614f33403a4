// Composes ckvd: the roles a config names, on one gRPC server, started and stopped in order.
//
//   start  name -> directory -> holder -> requester -> metrics -> server -> registrations
//   stop   watch -> calls -> holder's lanes -> metrics -> registrations -> server -> requester ->
//          directory

#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/daemon/config.h"

namespace ckv {

// Used by one thread.
class Daemon {
 public:
  // How often to call Tick: leases end and health changes up to this much late.
  static constexpr Duration kTickPeriod = std::chrono::milliseconds(100);

  // Starts the daemon and returns once its server answers. Its members may not be registered yet.
  //   InvalidArgument     the part that uses an option refuses it.
  //   Unavailable         an address cannot be bound; says why.
  //   ResourceExhausted   there is no memory for the store.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config);
  // Stops at once everything that Drain has not.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns the address for peers: as advertised, with the port as bound.
  const std::string& address() const;
  // Returns the address of the metrics, with the port as bound, or "" if there are none.
  const std::string& metrics_address() const;

  // Ends expired leases and sets the health of every service and of the whole (""). It writes the
  // ready file once every role is registered.
  //   Internal            the ready file cannot be written.
  //   AlreadyExists       another process holds the name, and this one was never registered.
  absl::Status Tick();
  // Returns true if every role has been registered.
  bool ready() const;
  // Calls Tick until ready.
  //   DeadlineExceeded    with the directory's last error.
  //   AlreadyExists       as Tick.
  absl::Status AwaitReady(Instant deadline);

  // Drains: health says not serving, waiting streams end, arrived requests are answered, and leases
  // are given back. Returns when all is done or soon after `deadline`.
  void Drain(Instant deadline);

 private:
  struct State;
  explicit Daemon(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Runs until SIGTERM, SIGINT or SIGHUP, drains, and returns the process' exit status: 0 after a
// drain, 1 if it could not start. A second SIGTERM or SIGINT ends the process at once with 1. Call
// it before any other thread starts: it blocks the signals, and threads inherit that.
int RunDaemon(const Config& config);

}  // namespace ckv
