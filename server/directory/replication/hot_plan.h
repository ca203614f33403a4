// Plans leased copies of the chunks of holders that are past their elbow
// (server/health/elbow_meter.h).
//
// A pure function, as copy_plan.h. A chunk is copied if every live member that has it is past its
// elbow. As long as one is not, requesters may choose that one. The aligned run is copied with it,
// because requesters ask one member for a run (target_choice.h).

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "proto/corpus.h"
#include "server/directory/replication/copy_plan.h"

namespace ckv {

// A chunk of a run that a holder reported as hot.
struct HotChunk {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
  std::vector<HolderId> leased;  // the members that have leased copies of it
};

struct HotPlanView {
  std::vector<CopyHolder> live;
  absl::flat_hash_set<HolderId> past_elbow;
  CoverageView::Lacking lacking;
  std::vector<HotChunk> chunks;  // the hottest first
};

// The most leased copies of a chunk that are made for the elbow.
inline constexpr size_t kHotCopyCountMax = 3;

// Returns the copies to make, each marked as leased. A target is not past its elbow, has room, and
// keeps a quarter of its memory free if it has no disk.
std::vector<PlannedCopy> PlanHotCopies(HotPlanView view);

}  // namespace ckv
