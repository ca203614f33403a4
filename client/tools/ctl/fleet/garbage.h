// Garbage collection: finds and deletes chunks that no corpus references on a holder.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/fleet.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// The chunks of one holder. Each chunk counts in the first of these categories that applies.
struct GarbageTally {
  uint64_t chunk_count = 0;   // all chunks
  uint64_t placed_count = 0;  // referenced by corpora: as a placement, or as a reported copy
  uint64_t kept_count = 0;    // pinned by an operator
  uint64_t young_count = 0;   // put or requested within the grace period
  uint64_t garbage_count = 0;
  uint64_t garbage_bytes = 0;
  // Parts of the garbage.
  uint64_t dropped_count = 0;
  uint64_t dropped_bytes = 0;
  uint64_t touched_count = 0;  // put, requested or pinned since it was found: kept
};

struct Garbage {
  Member holder;
  struct Chunk {
    ChunkId id;
    uint64_t bytes = 0;
  };
  std::vector<Chunk> chunks;
  GarbageTally tally;
};

// Finds the chunks of the holder that are idle for `grace`, not pinned, and not referenced there by
// a corpus of any tenant.
//   the holder's or the directory's error.
absl::StatusOr<Garbage> FindGarbage(Fleet& fleet, const Member& holder, Duration grace);

// Drops the garbage, chunk by chunk, and counts it in its tally. A chunk that was put or requested
// since it was found is kept: the holder decides this atomically with those calls. Each drop is
// independent, so the run can stop anywhere and be repeated.
//   the holder's error; what was already dropped is counted.
absl::Status DropGarbage(Fleet& fleet, Garbage& garbage, Duration grace,
                         const std::function<void(uint64_t count)>& on_chunks);

}  // namespace ckv::ctl
