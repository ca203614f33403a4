// A daemon's registrations at the directory, one for each role, and what it learns from there.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/grpc/channel_watch.h"
#include "client/grpc/watch_stub.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/ids.h"
#include "server/daemon/roles/holder_role.h"
#include "server/daemon/roles/shared.h"
#include "server/directory/directory_state.h"
#include "server/directory/registration.h"
#include "server/health/daemon_health.h"

namespace ckv {

// Used by the daemon's thread.
class Membership {
 public:
  // Everything borrowed must outlive this object. `local` is the directory of this process, or
  // null. `address` is this process' own for peers.
  Membership(DaemonShared* shared, DirectoryState* local, const DaemonHealth* health,
             std::string address)
      : shared_(shared), local_(local), health_(health), address_(std::move(address)) {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Registers a role, and keeps its lease.
  void AddHolder(HolderRole* holder);
  void AddRequester();
  // Passes changes of corpora and members to the requester, until EndWatch. `local_address` is
  // where this process reaches its own server.
  void StartWatch(Requester* requester, const std::string& local_address);
  // Renews the registrations as soon as the directory is reachable again, until EndWatch. Does
  // nothing if there are several directories.
  void WatchChannel();

  const std::vector<std::unique_ptr<Registration>>& registrations() const { return registrations_; }
  // Returns true if every role has a lease.
  //   AlreadyExists       another process has the name, and this one was never registered.
  absl::StatusOr<bool> IsRegistered() const;
  // Waits until every role is registered.
  //   DeadlineExceeded    with the directory's last error.
  absl::Status Await(Instant deadline);

  void EndWatch();
  // Gives the leases back.
  void EndRegistrations() { registrations_.clear(); }

 private:
  void Add(RegistrationOptions options, MemberRole role, LeaseGate* lease);

  // In order of construction; destroyed in reverse.
  DaemonShared* const shared_;
  DirectoryState* const local_;
  const DaemonHealth* const health_;
  const std::string address_;
  std::vector<std::unique_ptr<DirectoryRegistrar>> registrars_;
  std::vector<std::unique_ptr<Registration>> registrations_;
  std::unique_ptr<ChannelWatch> channel_;  // null if the directory is of this process, or several
  std::unique_ptr<WatchStub> watch_;
};

}  // namespace ckv
