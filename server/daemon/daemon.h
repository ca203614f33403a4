// Composes ckvd: the roles a config names, on one gRPC server, started and stopped in order.
//
//   start  name -> pages -> directory -> holder -> requester -> server -> registrations
//   stop   watch -> calls -> holder's lanes -> pages -> registrations -> server -> requester ->
//          directory

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/daemon/config.h"
#include "server/daemon/service_manager.h"
#include "server/directory/log/log_folder.h"
#include "store/disk/file_system.h"

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
  // `store_files` is how a holder reaches its folder; it must outlive the daemon. Unless null,
  // `replay` tells meanwhile how much of a directory's folder is read.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config,
                                                       FileSystem* store_files = FileSystem::Real(),
                                                       ReplayProgress* replay = nullptr);
  // Stops at once everything that Drain has not.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns the name that the directory knows it by.
  const std::string& name() const;
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
  // Returns how it is, in one line for people.
  std::string status() const;
  // Returns the parts that stand still only if the daemon hangs. They end with Drain.
  std::vector<LivePart> live_parts() const;
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

// Reads the configuration once more, from the sources of the first time.
using ConfigReader = std::function<absl::StatusOr<ParsedConfig>()>;

// Logs the warnings of `start`. Runs until SIGTERM or SIGINT, drains, and returns the process' exit
// status: 0 after a drain, 1 if it could not start. A second SIGTERM or SIGINT ends the process at
// once with 1. SIGHUP calls `reread` and takes the live options. A service manager is told of all
// that. Call it before any other thread starts: it blocks the signals, and threads inherit that.
int RunDaemon(const ParsedConfig& start, const ConfigReader& reread);

}  // namespace ckv
