// Puts chunks on holders, many at a time.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// The outcome of a put on one holder.
struct HolderTally {
  uint32_t copies_sent = 0;
  uint32_t copies_found = 0;  // there already
  uint64_t bytes_sent = 0;    // row bytes; in a dry run, those that would be sent
  // The part of bytes_sent for copies that another put just then: a put streams until the holder
  // says that it has the chunk.
  uint64_t bytes_sent_found = 0;
};

// Chunks that are read and not yet on all their holders, over all of them: 8 chunks of 2048 V3
// tokens are 1.2 GB.
inline constexpr uint32_t kChunksInFlightMax = 8;

// Told of rows as they are sent, or found; called from several threads. Either may be empty.
struct PutObserver {
  std::function<void(uint64_t bytes)> on_sent;
  std::function<void(uint64_t bytes)> on_found;
};

struct PutReport {
  std::map<std::string, HolderTally> tallies;  // one for each holder
  // For each chunk: DigestOf its layers' checksums, and whether a holder had it already. They are 0
  // and false for chunks that were placed nowhere, and so were not read.
  std::vector<uint64_t> digests;
  std::vector<bool> found;
};

// Reads every chunk that is placed anywhere, in order, at most kChunksInFlightMax at a time, and
// puts it on its holders, one thread a holder. A copy that is there with the same rows is not sent
// again (chunk_copy.h).
// No copy begins after `deadline`, and none takes longer than a minute.
//   the source's error, or the first of any holder, with how many copies are put.
absl::StatusOr<PutReport> PutChunks(ChunkSource& source,
                                    const std::vector<std::vector<HolderId>>& placement,
                                    std::span<const Member> holders, const std::string& tenant,
                                    Clock& clock, const PutObserver& observer,
                                    Instant deadline = kInstantMax);
// The same, but only asks: what would be sent is in the tallies.
absl::StatusOr<PutReport> PlanPuts(ChunkSource& source,
                                   const std::vector<std::vector<HolderId>>& placement,
                                   std::span<const Member> holders, const std::string& tenant,
                                   Clock& clock, const PutObserver& observer);

// Asks every holder for every chunk that it was put, and puts what is missing again: garbage may
// have been collected meanwhile. `report` is brought up to date.
//   Aborted             copies went missing again and again: someone drops what is put.
//   else as PutChunks.
absl::Status CheckPuts(ChunkSource& source, const std::vector<std::vector<HolderId>>& placement,
                       std::span<const Member> holders, const std::string& tenant, Clock& clock,
                       PutReport& report, Instant deadline = kInstantMax);

}  // namespace ckv
