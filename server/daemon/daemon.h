// Composes ckvd: runs the roles that a config names on one gRPC server, and starts and stops the
// parts in order.
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
  // How often to call Tick. The end of a lease and a change of health are noticed up to this much
  // late.
  static constexpr Duration kTickPeriod = std::chrono::milliseconds(100);

  // Starts the daemon and returns once its server accepts calls. Its members may not be registered
  // yet.
  //   InvalidArgument     the part that uses an option rejects it.
  //   Unavailable         an address cannot be bound; the message has the reason.
  //   ResourceExhausted   there is no memory for the store.
  // `store_files` is the file system of a holder's and a directory's folder; it must outlive the
  // daemon. If `replay` is not null, it reports meanwhile how much of a directory's folder has been
  // read.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config,
                                                       FileSystem* store_files = FileSystem::Real(),
                                                       ReplayProgress* replay = nullptr);
  // Stops at once everything that Drain has not stopped.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns the name under which the daemon registers at the directory.
  const std::string& name() const;
  // Returns the address for peers: as advertised, with the port as bound.
  const std::string& address() const;
  // Returns the address of the metrics, with the port as bound, or "" if there are none.
  const std::string& metrics_address() const;

  // Ends expired leases and sets the health of every service and of the whole process (""). Writes
  // the ready file once every role is registered.
  //   Internal            the ready file cannot be written.
  //   AlreadyExists       another process has the name, and this one was never registered.
  absl::Status Tick();
  // Returns true once every role has been registered.
  bool ready() const;
  // Returns the daemon's state, in one line for people.
  std::string status() const;
  // Returns the parts that make no progress only if the daemon hangs. Do not use them after Drain.
  std::vector<LivePart> live_parts() const;
  // Waits until every role is registered, then calls Tick.
  //   DeadlineExceeded    with the directory's last error.
  //   AlreadyExists, Internal  as Tick.
  absl::Status AwaitReady(Instant deadline);

  // Drains: reports its health as not serving, ends waiting streams, answers the requests that have
  // arrived and gives its leases back. Returns when all this is done, or soon after `deadline`.
  void Drain(Instant deadline);

 private:
  struct State;
  explicit Daemon(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Reads the configuration again, from the same sources as at the start.
using ConfigReader = std::function<absl::StatusOr<ParsedConfig>()>;

// Logs the warnings of `start`, runs until SIGTERM or SIGINT, and drains. Returns the process' exit
// status: 0 after a drain, 1 if the daemon could not start or ended with an error. A second SIGTERM
// or SIGINT ends the process at once with 1. SIGHUP calls `reread` and applies the live options.
// Reports all of this to a service manager. Call it before any other thread starts: it blocks the
// signals, and threads inherit that.
int RunDaemon(const ParsedConfig& start, const ConfigReader& reread);

}  // namespace ckv
