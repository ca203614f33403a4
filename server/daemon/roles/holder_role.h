// A daemon's role as holder: its store and lanes, the upkeep of its chunks, and its services.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/roles/shared.h"
#include "server/directory/directory_state.h"
#include "server/holder/chunk_expirer.h"
#include "server/holder/holder.h"
#include "server/services/holder_service.h"
#include "server/services/store_service.h"
#include "store/disk/file_system.h"

namespace ckv {

// Used by the daemon's thread.
class HolderRole {
 public:
  // Opens the store and listens for lanes. Everything borrowed must outlive the role. `local` is
  // the directory of this process, or null.
  //   Errors of StartHolderOver and DaemonPlacement::Start.
  static absl::StatusOr<std::unique_ptr<HolderRole>> Start(DaemonShared* shared, FileSystem* files,
                                                           DirectoryState* local);
  HolderRole(const HolderRole&) = delete;
  HolderRole& operator=(const HolderRole&) = delete;

  Holder& holder() { return *holder_; }
  // Not after EndPlacement.
  PlacementKeeper& placement() { return placement_->keeper(); }
  // Until EndScrub it makes copies. Its other functions may be called until this object is
  // destroyed.
  CopyMaker& copies() { return copies_->maker(); }
  HolderServiceImpl& holder_service() { return *holder_service_; }
  StoreServiceImpl& store_service() { return *store_service_; }

  // Checks the store until EndScrub, by the addresses of DaemonScrub.
  void StartScrub(const std::string& address, const std::string& directory);

  // Drops expired chunks. Call it often.
  void Tick() { expirer_->Tick(); }
  bool HasLease() const { return holder_->lease().LiveAt(shared_->clock->Now()); }

  // Ends copies, too.
  void EndScrub() {
    copies_->maker().Stop();
    scrub_.reset();
  }
  // Call it when no registration and no call uses the placement any more.
  void EndPlacement() { placement_.reset(); }

 private:
  explicit HolderRole(DaemonShared* shared) : shared_(shared) {}

  // In order of construction; destroyed in reverse.
  DaemonShared* const shared_;
  std::unique_ptr<Holder> holder_;
  std::unique_ptr<ChunkExpirer> expirer_;
  std::unique_ptr<DaemonPlacement> placement_;
  std::unique_ptr<DaemonCopies> copies_;
  std::unique_ptr<HolderServiceImpl> holder_service_;
  std::unique_ptr<StoreServiceImpl> store_service_;
  std::unique_ptr<DaemonScrub> scrub_;  // set while it runs
};

}  // namespace ckv
