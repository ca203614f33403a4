// A daemon's role as directory: its state, what makes it durable, and its service.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/daemon/roles/shared.h"
#include "server/directory/durable_directory.h"
#include "server/directory/etcd/etcd_directory.h"
#include "server/directory/log/log_folder.h"
#include "server/directory/ranking/network_oracles.h"
#include "server/services/directory_service.h"
#include "store/disk/file_system.h"

namespace ckv {

// Used by the daemon's thread.
class DirectoryRole {
 public:
  // Reads the directory's folder, or its state in etcd. Everything borrowed must outlive the role;
  // `replay` may be null.
  //   Errors of DurableDirectory::Open, EtcdDirectory::Open and StartOracles.
  static absl::StatusOr<std::unique_ptr<DirectoryRole>> Start(DaemonShared* shared,
                                                              FileSystem* files,
                                                              ReplayProgress* replay);

  DurableDirectory& home() { return *home_; }
  DirectoryState& state() { return home_->state(); }
  DirectoryServiceImpl& service() { return service_; }
  // Null, unless the directory is one of several.
  EtcdDirectory* etcd() { return etcd_.get(); }
  // Who leads, as a LeaderSource returns it. From any thread.
  std::optional<std::string> Leader() const;

  // Begins to take part in elections, if there are several directories. Peers reach this one at
  // `address`.
  void Stand(const std::string& address);
  // Gives up the lead, and takes part in no more elections, if there are several directories.
  void EndLead();
  // Ends expired leases, and orders and lists copies. Call it often.
  void Tick();

 private:
  DirectoryRole(DaemonShared* shared, std::unique_ptr<DurableDirectory> home,
                std::unique_ptr<EtcdDirectory> etcd, std::unique_ptr<NetworkOracles> oracles);

  const std::unique_ptr<DurableDirectory> home_;
  const std::unique_ptr<EtcdDirectory> etcd_;
  const std::unique_ptr<NetworkOracles> oracles_;  // null if none is configured
  DirectoryServiceImpl service_;
};

}  // namespace ckv
