#include "server/daemon/roles/requester_role.h"

#include <string>
#include <utility>

#include "client/grpc/directory_stub.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "server/directory/local_directory.h"

namespace ckv {
namespace {

RequesterServiceOptions ServiceOptionsOf(DaemonShared* shared, Duration spin_max) {
  RequesterServiceOptions options;
  options.id = shared->config.name;
  options.directory_address = [shared] { return shared->DirectoryAddress(); };
  options.version = std::string(Version());
  options.process = [shared] { return shared->Process(); };
  options.sample_trace = [shared] { return shared->sampler.Sample(); };
  options.clock = shared->clock;
  options.default_timeout = shared->config.default_timeout;
  options.spin_max = spin_max;
  options.directory_connected = [shared] { return shared->HearsDirectory(); };
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RequesterRole>> RequesterRole::Start(
    DaemonShared* shared, DirectoryState* local, HolderRole* holder,
    std::shared_ptr<const Profile> profile) {
  std::unique_ptr<RequesterRole> role(new RequesterRole);
  const Config& config = shared->config;
  Clock* const clock = shared->clock;
  CKV_ASSIGN_OR_RETURN(RequesterOptions options, RequesterOptionsOf(config));
  options.clock = clock;
  options.backend = shared->backends.requester;
  options.fabrics = shared->fabric_order;
  if (holder != nullptr) role->local_rows_ = std::make_unique<DaemonLocalRows>(&holder->holder());
  options.local_row_source = role->local_rows_.get();
  if (config.directory.empty()) {
    role->directory_ = std::make_unique<LocalDirectory>(local);
  } else {
    role->directory_ = std::make_unique<DirectoryStub>(config.directory, clock);
  }
  role->holder_stubs_ = std::make_unique<HolderStubFactory>(clock);
  CKV_ASSIGN_OR_RETURN(role->oracle_, StartOracle(config, clock));
  options.oracle = role->oracle_.get();
  role->profile_ = std::move(profile);
  options.profile = role->profile_;
  options.spans = shared->spans.get();
  CKV_ASSIGN_OR_RETURN(role->requester_, Requester::Create(options, role->directory_.get(),
                                                           role->holder_stubs_.get()));
  RequesterServiceOptions service = ServiceOptionsOf(shared, options.spin_max);
  if (holder != nullptr) {
    role->replicas_ = std::make_unique<DaemonReplicas>(config, clock, local, role->directory_.get(),
                                                       role->requester_.get(), &holder->holder());
    ReplicaKeeper* const keeper = &role->replicas_->keeper();
    holder->holder_service().OnPut([keeper](const ChunkId& id) { keeper->Adopt(id); });
    holder->copies().SetOnPut([keeper](const ChunkId& id) { keeper->Adopt(id); });
    service.replicas = keeper;
    role->local_rows_->SetKeeper(keeper);
  }
  role->service_ = std::make_unique<RequesterServiceImpl>(std::move(service),
                                                          role->requester_.get(), &shared->gate);
  return role;
}

void RequesterRole::SetRegistration(const Registration* holder) {
  if (replicas_ != nullptr) replicas_->SetRegistration(holder);
}

void RequesterRole::EndCopies() {
  if (replicas_ == nullptr) return;
  local_rows_->SetKeeper(nullptr);
  replicas_->SetRegistration(nullptr);
}

}  // namespace ckv
