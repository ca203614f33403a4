#include "server/daemon/roles/shared.h"

#include <utility>

#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/process_facts.h"

namespace ckv {

absl::Status DaemonShared::Name() {
  FillConfig(config);
  if (!config.name.empty()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(HostPort listen, HostPort::Parse(config.listen));
  CKV_ASSIGN_OR_RETURN(held_port, BindPort(listen));
  config.listen = listen.ToString();
  FillConfig(config);
  return absl::OkStatus();
}

absl::Status DaemonShared::Start() {
  CKV_ASSIGN_OR_RETURN(spans, StartSpans(config, clock));
  // A directory has no lanes. Its host may list fabrics for others, whose device it does not see.
  const bool has_lanes = config.HasRole("holder") || config.HasRole("requester");
  for (const std::string& name : has_lanes ? config.fabrics : std::vector<std::string>()) {
    CKV_ASSIGN_OR_RETURN(const FabricKind kind, ParseFabricName(name));
    CKV_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric, MakeFabric(kind, config, clock));
    fabrics.push_back(std::move(fabric));
    fabric_order.push_back(fabrics.back().get());
  }
  return absl::OkStatus();
}

ProcessFacts DaemonShared::Process() const { return ProcessFactsOf(*clock, started); }

std::string DaemonShared::DirectoryAddress() const {
  if (!config.directory.empty()) return config.directory;
  absl::MutexLock lock(&published_mu);
  return published_address;
}

void DaemonShared::Publish(const std::string& address) {
  absl::MutexLock lock(&published_mu);
  published_address = address;
}

}  // namespace ckv
