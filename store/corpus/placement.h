// Chooses the holders for the chunks of a new corpus.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/corpus.h"
#include "proto/ids.h"

namespace ckv {

// The maximum number of lists of holders that begin with the same primary.
inline constexpr uint32_t kPlacementListsPerHolder = 2;

// Returns the holders of each chunk, the primary first, with these guarantees:
//   - the placement is a function of the arguments alone, including the order of holders;
//   - a chunk's holders are distinct;
//   - aligned ranges of 2^k chunks have the same holders. Each range is a whole subtree of the
//     fixed merge tree (attention/merge.h), so one partial answers it. Ranges are as long as the
//     next guarantee allows, so each holder is the primary of at most 16 ranges. A selection spread
//     over 10,000 chunks returns as 20 partials, not thousands;
//   - no holder is the primary of more than its fair share of the chunks, rounded up, plus an
//     eighth;
//   - at each rank (primary, second replica, ...), the holders' numbers of ranges differ by at most
//     one;
//   - there are at most kPlacementListsPerHolder lists of holders with the same primary, so at most
//     2 N lists for N holders. With few lists, fewer chunks are lost when several holders fail at
//     once, and two holders share a failed holder's requests.
// `domains` has the failure domain of each holder, or is empty if all fail independently. The
// copies of a chunk are then as far apart as possible (SeparationOf), each one from all before it.
// If the domains differ in size, the last-but-one guarantee is about the primaries only.
//
// A requester uses the cheapest of a chunk's holders (client/holders/replica_choice.h).
//   InvalidArgument     `replicas` is 0 or above the number of holders or kReplicaCountMax. Or a
//                       holder has no name or occurs twice. Or there are more chunks than
//                       kCorpusChunkCountMax, or `domains` has another length than `holders`.
absl::StatusOr<std::vector<std::vector<HolderId>>> PlaceChunks(
    size_t chunk_count, std::span<const HolderId> holders, uint32_t replicas,
    std::span<const FailureDomain> domains = {});

// Returns which of `candidates` is farthest from all of `taken`; of equals, the first. All are
// indices into `domains`. `candidates` must not be empty.
size_t FarthestOf(std::span<const size_t> candidates, std::span<const size_t> taken,
                  std::span<const FailureDomain> domains);

}  // namespace ckv
