// Places chunks by the free space of holders, before a row is read or sent.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "client/publish/extension.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// The free space of one holder. If the holder does not report it, there is no limit.
struct HolderCapacity {
  uint64_t free_bytes = UINT64_MAX;
  uint64_t capacity_bytes = 0;
  // Chunks that it already has, which take no space. Queried only if space is short.
  absl::flat_hash_set<ChunkId> present = {};
  bool reports_present = true;  // whether it listed all its chunks in time
};
using HolderCapacities = std::map<std::string, HolderCapacity>;  // by name

// Queries holders for their free space, one after another, for kCapacityTimeout in total. A
// holder that does not answer is no error here: the puts then fail.
inline constexpr Duration kCapacityTimeout = std::chrono::seconds(2);
class CapacityReader {
 public:
  CapacityReader(std::span<const Member> holders, Clock* clock, Instant deadline)
      : holders_(holders), clock_(*clock), deadline_(deadline) {}
  // Adds the free space of holders that are not in `capacities` yet.
  void Read(std::span<const HolderId> ids, HolderCapacities& capacities) const;
  // Adds which chunks each holder of `capacities` has.
  void QueryPresent(HolderCapacities& capacities) const;

 private:
  const std::span<const Member> holders_;
  Clock& clock_;
  const Instant deadline_;
};

// The bytes that a chunk takes in a holder's store.
uint64_t StoreBytesOf(const Geometry& geometry, uint32_t token_count);

// Places the chunks `fresh` of the source like PlaceNewChunks if that placement fits. Otherwise
// gives aligned ranges of chunks to the holders with the most free space, preferring holders that
// already have them. The number of lists of holders may then exceed kPlacementListsPerHolder. If
// nothing fits but a holder did not list its chunks, returns PlaceNewChunks' placement: the chunks
// may be there.
//   ResourceExhausted   there is not enough space; names that of up to 8 holders, and a remedy.
//   InvalidArgument     as for PlaceNewChunks. Holders that are drained do not count.
absl::StatusOr<SourcePlacement> PlaceByCapacity(const ChunkSource& chunks,
                                                std::span<const uint32_t> fresh, size_t corpus_size,
                                                std::span<const Member> holders, uint32_t replicas,
                                                Clock& clock, Instant deadline);
// The same, with the free space given. `domains` as for PlaceChunks.
absl::StatusOr<SourcePlacement> PlaceInCapacity(const ChunkSource& chunks,
                                                std::span<const uint32_t> fresh, size_t corpus_size,
                                                std::span<const HolderId> holders,
                                                uint32_t replicas,
                                                const HolderCapacities& capacities,
                                                std::span<const FailureDomain> domains = {});

// Whether every holder that was queried for its chunks has listed them all.
bool AllReportPresent(const HolderCapacities& capacities);

// Whether each holder has space for the chunks that `placement` sends it.
bool FitsIn(const ChunkSource& chunks, const SourcePlacement& placement,
            const HolderCapacities& capacities);

// Returns the error that `need_bytes` do not fit: the space of up to 8 holders, and how to free
// some.
absl::Status CapacityError(uint64_t need_bytes, uint32_t replicas,
                           const HolderCapacities& capacities);

}  // namespace ckv
