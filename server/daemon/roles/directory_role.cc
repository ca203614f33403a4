#include "server/daemon/roles/directory_role.h"

#include <utility>

#include "proto/base/status.h"
#include "server/daemon/daemon_parts.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<DirectoryRole>> DirectoryRole::Start(DaemonShared* shared,
                                                                    FileSystem* files,
                                                                    ReplayProgress* replay) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<DurableDirectory> home,
                       OpenDirectory(shared->config, shared->clock, files, replay));
  return std::unique_ptr<DirectoryRole>(new DirectoryRole(shared, std::move(home)));
}

DirectoryRole::DirectoryRole(DaemonShared* shared, std::unique_ptr<DurableDirectory> home)
    : home_(std::move(home)), service_(&home_->state(), &shared->gate, shared->clock, home_.get()) {
  service_.ReportProcess([shared] { return shared->Process(); });
}

void DirectoryRole::Tick() {
  state().Expire();
  state().reports().PublishRebuilt();
  state().replication().Tick();
}

}  // namespace ckv
