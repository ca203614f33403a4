// The rows of chunk ranges in the local row cache: which are there, and space for those that are
// not.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/context/local_rows.h"
#include "client/prefetch/local_row_cache.h"
#include "client/prefetch/prefetch_records.h"

namespace ckv {

// The prefetcher's lock guards it, because two jobs run at once: what one finds here or reserves,
// the other must not evict or take meanwhile.
class LocalRanges {
 public:
  // Both must outlive it. `here`, the rows of this process' holder, may be null.
  LocalRanges(LocalRowCache* store, LocalRowSource* here) : store_(store), here_(here) {}

  const LocalRowCache& store() const { return *store_; }

  // Whether all chunks of a range are here: prefetched for other ranges, or stored by this process'
  // holder. If so, holds them for the range.
  bool HoldAll(PrefetchRange& range, const WatchedContext& watched,
               const ContextRange& context_range, Instant now);
  // Holds the chunks of a job that are here, and lists the others as missing. Returns the bytes
  // that those need.
  uint64_t HoldSome(PrefetchJob& job);
  // Reserves space for the missing chunks of a job.
  //   ResourceExhausted   there is not enough.
  absl::Status Reserve(PrefetchJob& job);
  // Replaces reserved space by mapped rows, which have one entry for each missing chunk, or null.
  absl::Status Adopt(PrefetchJob& job, std::vector<std::shared_ptr<const LocalRows>> mapped);
  // The range has the rows of its job from now on, whose reserved space is filled.
  void Keep(PrefetchJob& job, Instant now);
  // Releases what a failed job holds and has reserved.
  void Drop(PrefetchJob& job);
  // Releases the chunks of a range. It is no longer cached.
  void Release(PrefetchRange& range);
  // Puts the rows of a cached range into the table of a context. Returns true if the holders made
  // all of them, and this process recomputed none.
  bool AddTo(LocalRowTable& table, const WatchedContext& watched,
             const ContextRange& context_range) const;

 private:
  // Holds a chunk of a context if it is here. Returns its key in the local row cache, or zero.
  ChunkId HoldOne(const WatchedContext& watched, uint32_t chunk);

  LocalRowCache* const store_;
  LocalRowSource* const here_;
};

}  // namespace ckv
