// Lanes over a connected TCP socket: each end has its own copy of the slots.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/socket.h"
#include "transport/tcp/silence_watch.h"

namespace ckv {

// `socket` is connected, non-blocking and through its handshake; `shape` is valid. `watch` may be
// null.
//   ResourceExhausted   no memory or no descriptor is left.
absl::StatusOr<std::unique_ptr<RequestLane>> NewTcpRequestLane(UniqueFd socket,
                                                               const LaneShape& shape,
                                                               std::shared_ptr<SilenceWatch> watch);
// The same for a holder's end, whose slots are `memory`: private, and pinned if they have to be.
//   ResourceExhausted   no descriptor is left.
absl::StatusOr<std::unique_ptr<ServeLane>> NewTcpServeLane(UniqueFd socket, LaneMemory memory,
                                                           std::shared_ptr<SilenceWatch> watch);

}  // namespace ckv
