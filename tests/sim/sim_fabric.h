// A fabric whose frames are events of the simulation: lost, late, twice, damaged, or in time.

#pragma once

#include <functional>
#include <memory>

#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"
#include "transport/fabric.h"

namespace ckv::sim {

// A reply that a holder is about to send, for checks of who may answer (I4).
struct ReplySent {
  const Process* process;
  std::span<const std::byte> request, reply;
};
using OnReply = std::function<void(const ReplySent&)>;

// Whether two nodes are processes of one host.
using SameHost = std::function<bool(uint32_t from, uint32_t to)>;

// Connects the fabrics of all nodes. Outlives them. All ends use the one network.
class FabricHub;
std::shared_ptr<FabricHub> NewFabricHub(Network* network, SameHost same_host, OnReply on_reply);

// The fabric of one process. It calls itself tcp: ends do not share memory, so rows have checksums.
// Lanes of one host call themselves shm, and pass descriptors. A message of a link that is blocked
// is lost. If the link is still blocked after 3 s, both ends find that the lane is down, as by
// keep-alive. If a process dies, its peers find so in a moment, or after 3 s if its machine has no
// power.
std::unique_ptr<Fabric> NewSimFabric(std::shared_ptr<FabricHub> hub, Process* process,
                                     const NodeClock* clock);

// All lanes of the process break. Call it when it has died. `silent` as after a loss of power.
void BreakLanesOf(FabricHub& hub, const Process* process, bool silent);

}  // namespace ckv::sim
