// Copies the rows of a chunk range to this host, in each of the ways that there are.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/context/local_rows.h"
#include "client/prefetch/local_row_cache.h"
#include "client/prefetch/prefetch_records.h"
#include "client/prefetch/prefetcher_tools.h"
#include "proto/base/clock.h"

namespace ckv {

// Has no state of its own. Thread-safe, but each job belongs to one thread. Its methods wait for
// holders, so call them without a lock.
class RowCopier {
 public:
  // Bytes of a slice of a prefetch: 0.13 s at 1 Gbit/s.
  static constexpr uint64_t kSliceBytes = uint64_t{16} << 20;
  // The limit for mapping all chunks of a range. A holder copies 64 MiB in tens of milliseconds,
  // but only after large queries in its queue; it serves fetches before them.
  static constexpr Duration kMapTimeout = std::chrono::seconds(1);

  // All must outlive it. Copies stop early once `stopping` is set.
  RowCopier(const PrefetcherOptions* options, const PrefetcherTools* tools,
            const LocalRowCache* store, const std::atomic<bool>* stopping)
      : options_(options), tools_(tools), store_(store), stopping_(stopping) {}

  // Copies chunks that are not here to this process' holder, if there is one. Copies that succeed
  // are found there even if others fail.
  void CopyHere(const PrefetchJob& job) const;
  // Makes the cache of this host store the missing chunks, if there is one. They are then mapped or
  // fetched from there.
  void KeepAtCache(PrefetchJob& job) const;
  // Maps the missing chunks that holders on this host hand over in time. All requesters of the host
  // share these copies, but they use cache space like other rows: a cached chunk keeps its copy
  // alive. Returns an entry for each missing chunk; null if it is not mapped.
  //   Cancelled           the prefetcher stops.
  absl::StatusOr<std::vector<std::shared_ptr<const LocalRows>>> Map(const PrefetchJob& job) const;
  struct Recomputed {
    absl::Status status;
    uint64_t tokens = 0;
    Duration took{};
  };
  // Makes the context recompute the missing rows. Some must be missing.
  Recomputed Recompute(PrefetchJob& job) const;
  // Fetches the missing rows.
  //   Cancelled           the prefetcher stops.
  absl::Status Copy(PrefetchJob& job) const;

  bool wanted() const { return !stopping_->load(std::memory_order_relaxed); }

 private:
  // Returns when to give up a copy of this many bytes.
  Instant CopiedBy(uint64_t bytes) const;
  // Fetches the missing chunks [begin, end), which are neighbours.
  absl::Status CopyRows(PrefetchJob& job, size_t begin, size_t end) const;

  const PrefetcherOptions* const options_;
  const PrefetcherTools* const tools_;
  const LocalRowCache* const store_;
  const std::atomic<bool>* const stopping_;
};

}  // namespace ckv
