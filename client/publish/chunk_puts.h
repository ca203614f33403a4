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
  uint32_t copies_found = 0;  // already on the holder
  uint64_t bytes_sent = 0;    // row bytes; in a dry run, bytes that would be sent
  // The part of bytes_sent for copies that another put stored in the meantime. A put streams rows
  // until the holder reports that it has the chunk.
  uint64_t bytes_sent_found = 0;
};

// The most chunks that are read but not yet on all their holders: 8 chunks of 2048 V3 tokens are
// 1.2 GB.
inline constexpr uint32_t kChunksInFlightMax = 8;

// Called with the bytes of rows that are sent, or found, from several threads. Either may be empty.
struct PutObserver {
  std::function<void(uint64_t bytes)> on_sent;
  std::function<void(uint64_t bytes)> on_found;
};

struct PutReport {
  std::map<std::string, HolderTally> tallies;  // one for each holder
  // For each chunk: DigestOf its layers' checksums, and whether a holder already had it. They are 0
  // and false for chunks without a placement, which were not read.
  std::vector<uint64_t> digests;
  std::vector<bool> found;
};

// Reads, in order, every chunk that has a placement, and puts it on its holders, with one thread
// per holder. At most kChunksInFlightMax chunks are in flight. A copy that is there with the same
// rows is not sent again (chunk_copy.h).
// No copy begins after `deadline`, and none takes longer than a minute.
//   the source's error, or the first error of any holder, with the number of copies already put.
absl::StatusOr<PutReport> PutChunks(ChunkSource& source,
                                    const std::vector<std::vector<HolderId>>& placement,
                                    std::span<const Member> holders, const std::string& tenant,
                                    Clock& clock, const PutObserver& observer,
                                    Instant deadline = kInstantMax);
// A dry run of PutChunks: queries the holders only. The tallies contain what would be sent.
absl::StatusOr<PutReport> PlanPuts(ChunkSource& source,
                                   const std::vector<std::vector<HolderId>>& placement,
                                   std::span<const Member> holders, const std::string& tenant,
                                   Clock& clock, const PutObserver& observer);

// Queries every holder for every chunk that was put on it, and puts missing chunks again: garbage
// may have been collected meanwhile. Updates `report`.
//   Aborted             copies were missing again and again: another client drops them.
//   otherwise           as for PutChunks.
absl::Status CheckPuts(ChunkSource& source, const std::vector<std::vector<HolderId>>& placement,
                       std::span<const Member> holders, const std::string& tenant, Clock& clock,
                       PutReport& report, Instant deadline = kInstantMax);

}  // namespace ckv
