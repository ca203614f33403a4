#include "server/daemon/roles/holder_role.h"

#include "proto/base/status.h"
#include "server/daemon/kernel_start.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<HolderRole>> HolderRole::Start(DaemonShared* shared,
                                                              FileSystem* files,
                                                              DirectoryState* local) {
  std::unique_ptr<HolderRole> role(new HolderRole(shared));
  const Config& config = shared->config;
  Clock* const clock = shared->clock;
  CKV_ASSIGN_OR_RETURN(HolderOptions options, HolderOptionsOf(config));
  options.clock = clock;
  options.fabrics = shared->fabric_order;
  options.store_files = files;
  options.spans = shared->spans.get();
  CKV_ASSIGN_OR_RETURN(role->holder_, StartHolderOver(shared->backends, config, options));
  Holder* const holder = role->holder_.get();
  role->expirer_ = std::make_unique<ChunkExpirer>(&holder->store());
  CKV_ASSIGN_OR_RETURN(role->placement_, DaemonPlacement::Start(config, clock, local, holder));
  role->copies_ = std::make_unique<DaemonCopies>(config, clock, local, holder);
  role->copies_->maker().SetOnLeased(
      [keeper = &role->placement_->keeper()](const ChunkId& id) { keeper->NoteLeased(id); });
  role->holder_service_ =
      std::make_unique<HolderServiceImpl>(holder, config.name, &shared->gate, clock);
  role->holder_service_->ReportProcess([shared] { return shared->Process(); });
  role->store_service_ = std::make_unique<StoreServiceImpl>(
      holder, config.store_path, &shared->gate, clock,
      [self = role.get()](Instant deadline) { return self->placement().KeepNow(deadline); });
  return role;
}

void HolderRole::StartScrub(const std::string& address, const std::string& directory) {
  scrub_ = std::make_unique<DaemonScrub>(shared_->config, shared_->clock, holder_.get(), address,
                                         directory);
}

}  // namespace ckv
