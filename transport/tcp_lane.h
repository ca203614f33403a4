// Lanes over a connected TCP socket: each end has its own copy of the slots.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv {

// `socket` is connected, shaken hands on, and non-blocking; `shape` is valid.
//   ResourceExhausted   no memory or no descriptor.
absl::StatusOr<std::unique_ptr<RequestLane>> NewTcpRequestLane(UniqueFd socket,
                                                               const LaneShape& shape);
absl::StatusOr<std::unique_ptr<ServeLane>> NewTcpServeLane(UniqueFd socket, const LaneShape& shape);

}  // namespace ckv
