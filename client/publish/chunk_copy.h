// Queries one chunk on one holder, and puts it there.

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

// Returns the first message of a put of a chunk.
v1::PutChunkRequest PutHeader(const ChunkInfo& info, const Geometry& geometry,
                              const std::string& tenant);

// Returns a chunk's description from the holder.
//   NotFound            the holder does not have it or just found its copy damaged, or the tenant
//                       may not read it.
//   otherwise           the holder's error.
absl::StatusOr<ChunkInfo> ReadChunkInfo(const HolderCalls& calls, const ChunkId& id);

// Whether the holder has the chunk with these rows (DigestOf their layers' checksums).
//   DataLoss            it has other rows under this id.
//   otherwise           the holder's error.
absl::StatusOr<bool> HasChunk(const HolderCalls& calls, const ChunkId& id, uint64_t rows_digest);

// The outcome of one CopyChunk.
struct CopyOutcome {
  bool found = false;       // the holder had it; its expiry, if any, is now cleared
  uint64_t bytes_sent = 0;  // row bytes; 0 for most chunks that are found
};
// Puts a chunk, and sends its rows only if the holder does not have them. If it does, the put
// consists of the header alone. This makes the chunk durable if the holder has a store path but the
// chunk was only in memory. It also clears the chunk's expiry. Calls `on_bytes` as rows are sent.
//   DataLoss            as for HasChunk.
//   otherwise           the holder's error. Both errors name the chunk.
absl::StatusOr<CopyOutcome> CopyChunk(const HolderCalls& calls, const SourceChunk& chunk,
                                      const std::function<void(uint64_t bytes)>& on_bytes);

}  // namespace ckv
