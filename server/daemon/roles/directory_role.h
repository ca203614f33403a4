// A daemon's role as directory: its state, the log of its changes, and its service.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/daemon/roles/shared.h"
#include "server/directory/durable_directory.h"
#include "server/directory/log/log_folder.h"
#include "server/services/directory_service.h"
#include "store/disk/file_system.h"

namespace ckv {

// Used by the daemon's thread.
class DirectoryRole {
 public:
  // Reads the directory's folder. Everything borrowed must outlive the role; `replay` may be null.
  //   Errors of DurableDirectory::Open.
  static absl::StatusOr<std::unique_ptr<DirectoryRole>> Start(DaemonShared* shared,
                                                              FileSystem* files,
                                                              ReplayProgress* replay);

  DurableDirectory& home() { return *home_; }
  DirectoryState& state() { return home_->state(); }
  DirectoryServiceImpl& service() { return service_; }

  // Ends expired leases, and orders and lists copies. Call it often.
  void Tick();

 private:
  DirectoryRole(DaemonShared* shared, std::unique_ptr<DurableDirectory> home);

  const std::unique_ptr<DurableDirectory> home_;
  DirectoryServiceImpl service_;
};

}  // namespace ckv
