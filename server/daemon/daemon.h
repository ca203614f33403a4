// ckvd's composition: the roles a config names, on one gRPC server, started and stopped in order.
//
//   start  directory -> holder -> requester -> server -> registrations -> metrics
//   stop   watch -> calls -> holder's lanes -> metrics -> registrations -> server -> requester ->
//          directory

#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "server/config.h"

namespace ckv {

// Used by one thread.
class Daemon {
 public:
  // How often Tick wants to be called: leases end and health follows that much late.
  static constexpr Duration kTickPeriod = std::chrono::milliseconds(100);

  // Returns once the server answers; its members may not be registered yet.
  //   InvalidArgument     an option that only its user can judge.
  //   Unavailable         an address that cannot be bound; says why.
  //   ResourceExhausted   no memory for the store.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config);
  // Stops at once what Drain has not.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Where peers reach it: as advertised, with the port as bound.
  const std::string& address() const;
  // Where it serves metrics, with the port as bound; empty: nowhere.
  const std::string& metrics_address() const;

  // Ends leases that ran out, sets every service's health, and writes the ready file once every
  // role is registered.
  //   Internal            the ready file cannot be written.
  absl::Status Tick();
  // Whether every role has been registered.
  bool ready() const;
  // Waits for that, and ticks.
  //   DeadlineExceeded    with the directory's last error.
  absl::Status AwaitReady(Instant deadline);

  // Health says not serving, streams that wait end, requests that have arrived are answered, leases
  // are given back. Returns when all is done or soon after `deadline`.
  void Drain(Instant deadline);

 private:
  struct State;
  explicit Daemon(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Runs until SIGTERM or SIGINT, drains, and returns the process' exit status: 0 after a drain, 1
// if it could not start. A second signal ends the process at once with 1. Call before any other
// thread is started: it blocks the signals, and threads inherit that.
int RunDaemon(const Config& config);

}  // namespace ckv
