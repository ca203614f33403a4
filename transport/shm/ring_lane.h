// Lanes over memory that both ends see: shm maps it into two processes, loopback has it once.
//
// Messages go through the rings in the memory. Beside it the ends keep one Unix socket, the
// doorbell: a byte on it wakes a sleeper, and its hang-up tells that the peer has gone, however it
// went. So one descriptor serves for sleeping, and no flag of it is shared with the peer. A byte
// that carries a descriptor is the number of the slot whose reply follows in the ring, flagged
// (kRingDescriptorFlag); such bytes and flagged replies come in the same order.

#pragma once

#include <memory>

#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/socket.h"

namespace ckv {

// `doorbell` is a connected Unix stream socket whose other end the peer keeps.
std::unique_ptr<RequestLane> NewRingRequestLane(FabricKind kind,
                                                std::shared_ptr<const LaneMemory> memory,
                                                UniqueFd doorbell);
std::unique_ptr<ServeLane> NewRingServeLane(FabricKind kind,
                                            std::shared_ptr<const LaneMemory> memory,
                                            UniqueFd doorbell);

}  // namespace ckv
