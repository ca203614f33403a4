// Plans the moves that give a new holder its share of the chunks.
//
// A holder's share is the bytes of all copies, in proportion to its capacity. A new holder takes
// runs of chunks from holders that have more than their share, until it has its own. Nothing else
// moves: chunks move only onto that holder, and no holder gets more or keeps less than its share.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/directory/replication/copy_plan.h"

namespace ckv {

// Chunks `begin` to `end` of a corpus move from one holder to another.
struct ShareMove {
  std::shared_ptr<const Corpus> corpus;
  uint32_t begin = 0;
  uint32_t end = 0;
  HolderId from;
  HolderId to;
};

// Returns the moves for the holders in `view.filling`. Runs with the highest scores for the holder
// are first (target_choice.h). A move never brings the copies
// of a chunk closer together. Chunks of which a copy is missing do not move.
std::vector<ShareMove> PlanShares(const CopyPlanView& view);

}  // namespace ckv
