#include "client/holders/lane_pinning.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace ckv {
namespace {

constexpr absl::string_view kPinFailure = "ckv.PinFailure";

}  // namespace

absl::StatusOr<MemoryKind> LaneMemoryFor(const Backend* backend) {
  if (backend == nullptr) return absl::InvalidArgumentError("requester: no backend");
  const BackendReach& reach = backend->reach();
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned}) {
    if (reach.rotated_from.Has(kind) && reach.rotated_to.Has(kind) && reach.parts.Has(kind) &&
        reach.scattered_from.Has(kind))
      return kind;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "requester: its lanes are in host or pinned memory, and kernels of %s reach neither",
      backend->kernel_target()));
}

absl::Status PinLane(RequestLane& lane, std::shared_ptr<MemoryPinner> pinner) {
  absl::Status pinned = lane.PinSlots(std::move(pinner));
  if (!pinned.ok()) pinned.SetPayload(kPinFailure, absl::Cord());
  return pinned;
}

bool IsPinFailure(const absl::Status& status) { return status.GetPayload(kPinFailure).has_value(); }

std::shared_ptr<MemoryPinner> LanePinnerFor(Backend* backend) {
  const absl::StatusOr<MemoryKind> memory = LaneMemoryFor(backend);
  if (!memory.ok() || *memory == MemoryKind::kHost) return nullptr;
  return std::make_shared<PinnerOf<Backend>>(backend);
}

}  // namespace ckv
