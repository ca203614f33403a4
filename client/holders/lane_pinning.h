// Finds the kind of memory that a requester's lanes need for its backend, and pins it.

#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "transport/fabric.h"
#include "transport/memory_region.h"

namespace ckv {

// Returns kHost if the backend can write queries to host memory and read replies there. Returns
// kPinned if it can do so in pinned memory only.
//   InvalidArgument     it is null, or can do neither, so it could not access lanes.
absl::StatusOr<MemoryKind> LaneMemoryFor(const Backend* backend);

// Returns the pinner of lanes for a backend, which must outlive them. Returns null if the backend
// can access host memory.
std::shared_ptr<MemoryPinner> LanePinnerFor(Backend* backend);

// Pins the slots of a lane that was just opened.
//   as RequestLane::PinSlots. IsPinFailure distinguishes these errors from failures of a holder.
absl::Status PinLane(RequestLane& lane, std::shared_ptr<MemoryPinner> pinner);
bool IsPinFailure(const absl::Status& status);

// Returns the kind of memory of a lane's slots.
inline MemoryKind SlotMemory(const RequestLane& lane) {
  return lane.slot_type() == RegionType::kPinned ? MemoryKind::kPinned : MemoryKind::kHost;
}

}  // namespace ckv
