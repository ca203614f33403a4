// Chunks that no corpus places where they lie, and taking them away.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/fleet.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// The chunks of one holder. Each counts once, in the first of these that it is.
struct GarbageTally {
  uint64_t chunk_count = 0;   // all
  uint64_t placed_count = 0;  // corpora place it there, or are told of it there
  uint64_t kept_count = 0;    // pinned by an operator
  uint64_t young_count = 0;   // put or asked for within the grace
  uint64_t garbage_count = 0;
  uint64_t garbage_bytes = 0;
  // Parts of the garbage.
  uint64_t dropped_count = 0;
  uint64_t dropped_bytes = 0;
  uint64_t touched_count = 0;  // put, asked for or pinned since it was found: it stays
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

// Finds what the holder has that is idle for `grace`, that nobody keeps and no corpus of any tenant
// places there.
//   the holder's or the directory's error.
absl::StatusOr<Garbage> FindGarbage(Fleet& fleet, const Member& holder, Duration grace);

// Drops it, chunk by chunk, and counts in its tally. A chunk that was put or asked for since it was
// found stays: the holder decides, in one step with those calls. Each drop stands by itself, so
// this can end anywhere and be run again.
//   the holder's error; what was dropped is counted.
absl::Status DropGarbage(Fleet& fleet, Garbage& garbage, Duration grace,
                         const std::function<void(uint64_t count)>& on_chunks);

}  // namespace ckv::ctl
