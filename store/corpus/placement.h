// Chooses the holders that a new corpus's chunks go to.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/ids.h"

namespace ckv {

// The lists of holders that begin with the same primary.
inline constexpr uint32_t kPlacementListsPerHolder = 2;

// Returns the holders of each chunk, the primary first. It guarantees that
//   - the placement is a function of the arguments alone, the order of holders included;
//   - a chunk's holders are distinct;
//   - aligned runs of 2^k chunks have the same holders. Each is a whole subtree of the fixed tree
//     (attention/merge.h), so it is answered by one partial. Runs are as long as the next guarantee
//     allows, so each holder has at most 16 of them. A selection that is spread over 10,000 chunks
//     comes back as 20 partials and not as thousands;
//   - as primary, no holder has more than an eighth above its fair share of the chunks, rounded up;
//   - at each rank (primary, second replica, ...) holders have as many runs, or one more;
//   - there are at most kPlacementListsPerHolder lists of holders with the same primary: with N
//     holders at most 2 N lists. Few lists lose less when several holders are lost at once, and a
//     dead holder's requests are shared by two.
// A requester asks the cheapest of a chunk's holders (client/holders/replica_choice.h).
//   InvalidArgument     There are no replicas, or more than holders or kReplicaCountMax. A holder
//                       has no name or is there twice. There are more chunks than
//                       kCorpusChunkCountMax.
absl::StatusOr<std::vector<std::vector<HolderId>>> PlaceChunks(size_t chunk_count,
                                                               std::span<const HolderId> holders,
                                                               uint32_t replicas);

}  // namespace ckv
