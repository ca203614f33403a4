#include "client/requester_options.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/holders/lane_opener.h"
#include "client/holders/lane_pinning.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// If no fabrics are given, the requester takes shm and tcp.
bool HasFabric(const RequesterOptions& options, FabricKind kind) {
  if (options.fabrics.empty()) return kind == FabricKind::kShm || kind == FabricKind::kTcp;
  return std::ranges::count(options.fabrics, kind, &Fabric::kind) > 0;
}

}  // namespace

absl::Status ValidateRequesterOptions(const RequesterOptions& options) {
  if (options.clock == nullptr) return absl::InvalidArgumentError("requester: a clock is needed");
  CKV_RETURN_IF_ERROR(LaneMemoryFor(options.backend).status());
  if (options.call_count_max == 0 || options.call_count_max > RequesterOptions::kCallCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("requester: call_count_max %d, 1 to %d",
                                                      options.call_count_max,
                                                      RequesterOptions::kCallCountMax));
  }
  if (options.call_threads == 0 || options.call_threads > WorkerPool::kThreadCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "requester: call_threads %d, 1 to %d", options.call_threads, WorkerPool::kThreadCountMax));
  }
  if (options.spin_max < Duration::zero() || options.connect_timeout <= Duration::zero())
    return absl::InvalidArgumentError("requester: spin_max or connect_timeout is negative");
  if (options.fabric && !HasFabric(options, *options.fabric)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "requester: fabric %s is not among its fabrics", FabricName(*options.fabric)));
  }
  return ValidateLaneShape(options.lane_shape);
}

LinkOptions LinkOptionsOf(const RequesterOptions& options) {
  LinkOptions of;
  of.requester = options.id;
  of.host_identity = HostIdentity();
  of.clock = options.clock;
  of.fabrics = options.fabrics;
  of.shape = options.lane_shape;
  of.connect_timeout = options.connect_timeout;
  of.forced = options.fabric;
  of.rdma_fallback = options.rdma_fallback;
  of.oracle = options.oracle;
  of.backend = options.backend;
  of.slot_pinner = LanePinnerFor(options.backend);
  of.spans = options.spans;
  return of;
}

}  // namespace ckv
