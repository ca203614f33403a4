// Chooses the holders that a new corpus's chunks go to.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/ids.h"

namespace ckv {

// Returns the holders of each chunk, the primary first. It guarantees that
//   - the placement is a function of the arguments alone, the order of holders included;
//   - a chunk's holders are distinct;
//   - at each rank (primary, second replica, ...) holders have the same number of chunks, or one
//     more;
//   - neighbours in the corpus have different primaries, so a run of chunks is read from many;
//   - after every holders.size() chunks another holder is second to a given primary, so that all
//     others share a dead holder's requests.
// A requester asks the cheapest of a chunk's holders, in one request for all chunks with the same
// list of holders (client/holders/replica_choice.h). With N holders and 2 replicas there are N (N -
// 1) lists.
//   InvalidArgument     there are no replicas, or more than holders or kReplicaCountMax. Or a
//   holder
//                       has no name or is there twice. Or there are more chunks than
//                       kCorpusChunkCountMax.
absl::StatusOr<std::vector<std::vector<HolderId>>> PlaceChunks(size_t chunk_count,
                                                               std::span<const HolderId> holders,
                                                               uint32_t replicas);

}  // namespace ckv
