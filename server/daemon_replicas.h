// The keeper of replicas of a daemon that is holder and requester, from its options.

#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/control.h"
#include "client/requester.h"
#include "proto/clock.h"
#include "server/config.h"
#include "server/directory/directory_state.h"
#include "server/holder.h"
#include "server/registration.h"
#include "server/replica_keeper.h"

namespace ckv {

// Thread-safe.
class DaemonReplicas {
 public:
  // `local` is the directory of this process, used where the config names no other. All must
  // outlive this.
  DaemonReplicas(const Config& config, Clock* clock, DirectoryState* local,
                 DirectoryControl* directory, Requester* requester, Holder* holder);

  // The holder's, once it is there; null before it goes.
  void SetRegistration(const Registration* registration) ABSL_LOCKS_EXCLUDED(mu_);

  ReplicaKeeper& keeper() { return *keeper_; }

 private:
  std::optional<LeaseGrant> Lease() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  const Registration* registration_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<ReplicaRegistry> registry_;
  std::unique_ptr<ChunkInfoSource> infos_;
  std::unique_ptr<ReplicaKeeper> keeper_;  // the last: its thread uses the others
};

}  // namespace ckv
