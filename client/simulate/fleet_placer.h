// Places the requests of a simulated fleet on its requesters, by Rank (client/rank/rank.h).
//
// It has what a router sees: each requester's queue and batch, its copies under way, and a digest
// of its local row cache. Candidates of equal cost take turns.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/rank/rank.h"
#include "client/simulate/fabric_tree.h"
#include "client/simulate/fleet_spec.h"

namespace ckv {

// The load of a requester.
struct FleetLoad {
  uint32_t waiting = 0, running = 0;  // contexts
  uint32_t copies = 0;                // copies of rows under way to it
};

// Not thread-safe.
class FleetPlacer {
 public:
  // All must outlive it.
  FleetPlacer(const FleetSpec* spec, const FabricTree* tree, const FleetPlacement* placement);

  // Returns the node whose requester takes a request for a document. `loads` has one for each node.
  uint32_t Place(uint32_t document, const std::vector<FleetLoad>& loads);
  // A chunk came into the local row cache of a requester, or was evicted.
  void Changed(uint32_t node, uint32_t chunk, bool cached);

 private:
  const FleetSpec& spec_;
  const FabricTree& tree_;
  const FleetPlacement& placement_;
  // By document: chunks that each requester has in its local row cache.
  std::vector<absl::flat_hash_map<uint32_t, uint32_t>> cached_;
  std::vector<RankCandidate> candidates_;
  Ranking ranking_;
  uint32_t turn_ = 0;
};

}  // namespace ckv
