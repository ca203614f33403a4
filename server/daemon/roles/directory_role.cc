#include "server/daemon/roles/directory_role.h"

#include <utility>

#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "server/daemon/daemon_parts.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<DirectoryRole>> DirectoryRole::Start(DaemonShared* shared,
                                                                    FileSystem* files,
                                                                    ReplayProgress* replay) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<DurableDirectory> home,
                       OpenDirectory(shared->config, shared->clock, files, replay));
  std::unique_ptr<EtcdDirectory> etcd;
  if (!shared->config.directory_store.empty()) {
    CKV_ASSIGN_OR_RETURN(const EtcdStore store, EtcdStore::Parse(shared->config.directory_store));
    auto opened = EtcdDirectory::Open(store, shared->clock, &home->state(),
                                      shared->clock->Now() + EtcdDirectory::kOpenMax);
    if (!opened.ok()) return Annotate(opened.status(), "directory.store");
    etcd = *std::move(opened);
    home->NoteRead([shared_state = etcd.get()] { return shared_state->Refusal(); });
  }
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<NetworkOracles> oracles,
                       StartOracles(shared->config, shared->clock));
  return std::unique_ptr<DirectoryRole>(
      new DirectoryRole(shared, std::move(home), std::move(etcd), std::move(oracles)));
}

DirectoryRole::DirectoryRole(DaemonShared* shared, std::unique_ptr<DurableDirectory> home,
                             std::unique_ptr<EtcdDirectory> etcd,
                             std::unique_ptr<NetworkOracles> oracles)
    : home_(std::move(home)),
      etcd_(std::move(etcd)),
      oracles_(std::move(oracles)),
      service_(&home_->state(), &shared->gate, shared->clock, home_.get(),
               shared->config.lease_ttl) {
  service_.RankBy(oracles_.get());
  service_.ReportProcess([shared] { return shared->Process(); });
  if (etcd_ != nullptr)
    service_.CatchUpBy([this](Instant deadline) { return etcd_->CatchUp(deadline); });
}

std::optional<std::string> DirectoryRole::Leader() const {
  const auto leader = home_->state().changes().leader();
  if (!leader) return std::nullopt;
  return leader->is_this ? std::string(kLeadsItself) : leader->address;
}

void DirectoryRole::Stand(const std::string& address) {
  if (etcd_ != nullptr) etcd_->Start(address);
}

void DirectoryRole::EndLead() {
  if (etcd_ != nullptr) etcd_->End();
}

void DirectoryRole::Tick() {
  state().Expire();
  state().corpora().DropExpired();
  state().reports().PublishRebuilt();
  state().changes().SubmitMembers();
  state().replication().Tick();
}

}  // namespace ckv
