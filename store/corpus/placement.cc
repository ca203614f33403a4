#include "store/corpus/placement.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/corpus.h"

namespace ckv {

absl::StatusOr<std::vector<std::vector<HolderId>>> PlaceChunks(size_t chunk_count,
                                                               std::span<const HolderId> holders,
                                                               uint32_t replicas) {
  if (chunk_count > kCorpusChunkCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: %d chunks, limit %d", chunk_count, kCorpusChunkCountMax));
  }
  if (replicas == 0 || replicas > kReplicaCountMax || replicas > holders.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: %d replicas on %d holders, must be 1 to the number of holders, "
                        "at most %d",
                        replicas, holders.size(), kReplicaCountMax));
  }
  absl::flat_hash_set<HolderId> seen;
  for (const HolderId& holder : holders) {
    if (holder.name.empty() || !seen.insert(holder).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("placement: the holder '%s' is there twice or has no name", holder.name));
    }
  }
  // Chunks go in blocks of one a holder. Within a block a rank is a rotation of the primaries, so
  // each holder gets one chunk of it; the rotation differs between the ranks of a block (distinct
  // holders) and from block to block (the spread).
  const size_t count = holders.size();
  std::vector<std::vector<HolderId>> placement(chunk_count);
  for (size_t chunk = 0; chunk < chunk_count; ++chunk) {
    const size_t block = chunk / count;
    placement[chunk].reserve(replicas);
    placement[chunk].push_back(holders[chunk % count]);
    for (size_t rank = 1; rank < replicas; ++rank) {
      const size_t rotation = 1 + (block * (replicas - 1) + rank - 1) % (count - 1);
      placement[chunk].push_back(holders[(chunk + rotation) % count]);
    }
  }
  return placement;
}

}  // namespace ckv
