#include "server/daemon_replicas.h"

#include "server/replica_stub.h"

namespace ckv {

DaemonReplicas::DaemonReplicas(const Config& config, Clock* clock, DirectoryState* local,
                               DirectoryControl* directory, Requester* requester, Holder* holder)
    : infos_(std::make_unique<ChunkInfoStub>(clock)) {
  if (config.directory.empty()) {
    registry_ = std::make_unique<LocalReplicaRegistry>(local);
  } else {
    registry_ = std::make_unique<ReplicaRegistryStub>(config.directory, clock);
  }
  ReplicaKeeperOptions options;
  options.self = {config.name};
  options.clock = clock;
  options.replica_bytes_max = config.store_capacity_bytes / 100 * config.replicas_percent;
  keeper_ =
      std::make_unique<ReplicaKeeper>(options, directory, infos_.get(), registry_.get(), requester,
                                      &holder->table(), [this] { return Lease(); });
}

void DaemonReplicas::SetRegistration(const Registration* registration) {
  absl::MutexLock lock(&mu_);
  registration_ = registration;
}

// The registration's own lock is taken under this one, so that it is not destroyed meanwhile.
std::optional<LeaseGrant> DaemonReplicas::Lease() {
  absl::MutexLock lock(&mu_);
  if (registration_ == nullptr) return std::nullopt;
  return registration_->report().lease;
}

}  // namespace ckv
