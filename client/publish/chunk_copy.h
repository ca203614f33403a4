// One chunk on one holder: asked for, and put.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "client/publish/holder_calls.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// Returns what a chunk is, as the holder has it.
//   NotFound            it is not there, or its copy was found damaged just now; or not the
//                       tenant's to read.
//   the holder's error.
absl::StatusOr<ChunkInfo> AskForChunk(const HolderCalls& calls, const ChunkId& id);

// Whether the holder has the chunk with these rows (DigestOf their layers' checksums).
//   DataLoss            it has other rows under this id.
//   the holder's error.
absl::StatusOr<bool> HasChunk(const HolderCalls& calls, const ChunkId& id, uint64_t rows_digest);

// The outcome of one CopyChunk.
struct CopyOutcome {
  bool found = false;       // it was there, and now stays as what is put does
  uint64_t bytes_sent = 0;  // row bytes; 0 for most that are found
};
// Puts the chunk unless it is there with these rows; rows are sent only if it is not. A copy that
// is there is put by its header alone. A holder with a folder that had it in memory only makes it
// durable then. One that was to drop it after a time keeps it. `on_bytes` is told of rows as they
// go.
//   DataLoss            as HasChunk; else the holder's error. Both name the chunk.
absl::StatusOr<CopyOutcome> CopyChunk(const HolderCalls& calls, const SourceChunk& chunk,
                                      const std::function<void(uint64_t bytes)>& on_bytes);

}  // namespace ckv
