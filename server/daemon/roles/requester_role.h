// A daemon's role as requester: what it computes attends with, and its service. If the process is a
// holder, too, it copies chunks there and reads them in place.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/cost/network_oracle.h"
#include "client/cost/profile_file.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/roles/holder_role.h"
#include "server/daemon/roles/shared.h"
#include "server/directory/directory_state.h"
#include "server/directory/registration.h"
#include "server/services/requester_service.h"
#include "transport/control.h"

namespace ckv {

// Used by the daemon's thread.
class RequesterRole {
 public:
  // Everything borrowed must outlive the role. `local` is the directory of this process, and
  // `holder` its role as holder; each may be null, and so may `profile`.
  //   Errors of RequesterOptionsOf, StartOracle and Requester::Create.
  static absl::StatusOr<std::unique_ptr<RequesterRole>> Start(
      DaemonShared* shared, DirectoryState* local, HolderRole* holder,
      std::shared_ptr<const Profile> profile);
  RequesterRole(const RequesterRole&) = delete;
  RequesterRole& operator=(const RequesterRole&) = delete;

  Requester& requester() { return *requester_; }
  RequesterServiceImpl& service() { return *service_; }
  // Null unless the process is a holder, too.
  const ReplicaKeeper* replicas() const {
    return replicas_ == nullptr ? nullptr : &replicas_->keeper();
  }

  // Sets the registration of the holder of this process, if it is one. Call EndCopies before the
  // registration is destroyed.
  void SetRegistration(const Registration* holder);
  // Makes no more copies, and waits for those in progress.
  void EndCopies();

 private:
  RequesterRole() = default;

  // In order of construction; destroyed in reverse.
  std::unique_ptr<DirectoryControl> directory_;
  std::unique_ptr<HolderStubFactory> holder_stubs_;
  std::unique_ptr<NetworkOracle> oracle_;        // null if there is none
  std::shared_ptr<const Profile> profile_;       // null if there is none
  std::unique_ptr<DaemonLocalRows> local_rows_;  // set if the process is a holder, too
  std::unique_ptr<Requester> requester_;
  std::unique_ptr<DaemonReplicas> replicas_;  // set if the process is a holder, too
  std::unique_ptr<RequesterServiceImpl> service_;
};

}  // namespace ckv
