// Writes a planned frame into a slot.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/plan/attend_plan.h"
#include "client/plan/route_call.h"
#include "transport/wire.h"

namespace ckv {

// Writes the body of a frame into `slot`, in host or pinned memory. Writes its query rows on
// `stream`: they are in place only after a Wait. Returns the header, in which the caller must set
// the ids before encoding it.
//   Errors of Backend::Rotate.
absl::StatusOr<RequestHeader> WriteFrame(const RouteCall& call, const AttendPlan& plan,
                                         const PlannedFrame& frame, std::span<std::byte> slot,
                                         MemoryKind slot_memory, ComputeStream& stream);

}  // namespace ckv
