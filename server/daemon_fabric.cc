#include "server/daemon_fabric.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "transport/verbs_fabric.h"

namespace ckv {
namespace {

VerbsOptions VerbsOptionsOf(const Config& config) {
  VerbsOptions options;
  options.device = config.verbs_device;
  options.port = static_cast<uint8_t>(config.verbs_port);
  options.gid_index =
      config.verbs_gid_index == kVerbsGidIndexAuto ? -1 : static_cast<int>(config.verbs_gid_index);
  options.mtu_bytes = config.verbs_mtu;
  options.timeout = static_cast<uint8_t>(config.verbs_timeout);
  options.retry_count = static_cast<uint8_t>(config.verbs_retry_count);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(FabricKind kind, const Config& config,
                                                   Clock* clock) {
  switch (kind) {
    case FabricKind::kShm:
      return NewShmFabric(clock);
    case FabricKind::kTcp:
      return NewTcpFabric(clock, TcpOptions{.busy_poll_us = config.tcp_busy_poll_us});
    case FabricKind::kLoopback:
      return NewLoopbackFabric(clock);
    case FabricKind::kVerbs: {
      auto fabric = NewVerbsFabric(VerbsOptionsOf(config), clock);
      if (!fabric.ok()) return Annotate(fabric.status(), "fabrics: verbs");
      return std::unique_ptr<Fabric>(*std::move(fabric));
    }
  }
  return absl::InvalidArgumentError("fabrics: one that this build does not know");
}

}  // namespace ckv
