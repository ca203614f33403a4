// Which holders a corpus's chunks go to.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/ids.h"

namespace ckv {

// For each chunk its holders, the primary first. What is guaranteed:
//   - a function of the arguments alone: the same holders in the same order give the same
//   placement;
//   - a chunk's holders are distinct;
//   - of each rank (primaries, second replicas, ...) every holder has the same number of chunks, to
//     within 1;
//   - neighbours in the corpus have different primaries, so a run of chunks is read from many;
//   - every holders.size() chunks another holder is second to a given primary, so that a dead
//     holder's requests can spread over all others instead of doubling one's load.
// Requesters ask the cheapest of a chunk's holders, in one request for all chunks that have the
// same ones (client/replica_choice.h): of N holders and 2 replicas there are N (N - 1) lists.
//   InvalidArgument     no replicas, more than holders or than kReplicaCountMax; a holder twice or
//                       without a name; more than kCorpusChunkCountMax chunks.
absl::StatusOr<std::vector<std::vector<HolderId>>> PlaceChunks(size_t chunk_count,
                                                               std::span<const HolderId> holders,
                                                               uint32_t replicas);

}  // namespace ckv
