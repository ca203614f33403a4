// Lanes over a connected TCP socket: each end has its own copy of the slots.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/socket.h"
#include "transport/tcp/silence_watch.h"

namespace ckv {

// `socket` is connected, non-blocking and through its handshake; `shape` is valid. `watch` may be
// null, and so may `slot_pinner`.
//   ResourceExhausted   no memory or no descriptor is left.
//   else                as MemoryPinner::Pin.
absl::StatusOr<std::unique_ptr<RequestLane>> NewTcpRequestLane(UniqueFd socket,
                                                               const LaneShape& shape,
                                                               std::shared_ptr<SilenceWatch> watch);
absl::StatusOr<std::unique_ptr<ServeLane>> NewTcpServeLane(
    UniqueFd socket, const LaneShape& shape, std::shared_ptr<SilenceWatch> watch,
    std::shared_ptr<MemoryPinner> slot_pinner);

}  // namespace ckv
