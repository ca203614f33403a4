// Lanes over memory that both ends share: shm maps it into two processes, loopback into one.
//
// Messages use the rings in the shared memory. Additionally, the ends share one Unix socket, the
// doorbell. A byte on it wakes a sleeping peer; its hang-up means that the peer has ended, for any
// reason. So a sleeper waits on one descriptor, which shares no flag with the peer. A byte that
// carries a descriptor is the number of a slot. The reply in that slot follows in the ring, flagged
// with kRingDescriptorFlag. These bytes and the flagged replies have the same order.

#pragma once

#include <memory>

#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/socket.h"

namespace ckv {

// `doorbell` is a connected Unix stream socket; the peer has its other end.
std::unique_ptr<RequestLane> NewRingRequestLane(FabricKind kind, std::shared_ptr<LaneMemory> memory,
                                                UniqueFd doorbell);
std::unique_ptr<ServeLane> NewRingServeLane(FabricKind kind,
                                            std::shared_ptr<const LaneMemory> memory,
                                            UniqueFd doorbell);

}  // namespace ckv
