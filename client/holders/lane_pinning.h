// The memory of a requester's lanes, as its backend reaches it.

#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "transport/fabric.h"
#include "transport/memory_region.h"

namespace ckv {

// Returns kHost if the backend writes queries to host memory and reads replies there, or kPinned if
// it does so in pinned memory only.
//   InvalidArgument     it is null, or does neither: lanes would be out of its reach.
absl::StatusOr<MemoryKind> LaneMemoryFor(const Backend* backend);

// Returns what pins lanes for a backend, which must outlive them; null if it reaches host memory.
std::shared_ptr<MemoryPinner> LanePinnerFor(Backend* backend);

// Pins the slots of a lane that has just come up.
//   as RequestLane::PinSlots; IsPinFailure tells it from failures of a holder.
absl::Status PinLane(RequestLane& lane, std::shared_ptr<MemoryPinner> pinner);
bool IsPinFailure(const absl::Status& status);

// The kind of memory of a lane's slots.
inline MemoryKind SlotMemory(const RequestLane& lane) {
  return lane.slot_type() == RegionType::kPinned ? MemoryKind::kPinned : MemoryKind::kHost;
}

}  // namespace ckv
