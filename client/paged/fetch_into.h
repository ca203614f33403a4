// A fetch into a paged cache: tracks the complete layers, and continues after a broken transfer.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "attention/rope.h"
#include "client/call/fetch_plan.h"
#include "client/calls.h"
#include "client/paged/paged_cache.h"
#include "transport/scatter_list.h"

namespace ckv {

// Puts fetched rows into the cache's blocks. Rows arrive in the order chunk, layer, token, and are
// written to their blocks on arrival. Belongs to one thread and borrows the call.
class CacheFetch {
 public:
  // Reserves the blocks.
  //   InvalidArgument     no corpus, an invalid range of chunks or position, a slice of columns,
  //                       layers other than the cache's, or a cache in memory that `backend` does
  //                       not reach.
  //   FailedPrecondition  the geometry is not the cache's, or the sequence is being extended.
  //   NotFound, ResourceExhausted  as PagedCache::Reserve.
  static absl::StatusOr<CacheFetch> Begin(const FetchCall& call, PagedCache& cache,
                                          CacheSequenceId sequence, const Backend& backend);

  // Returns the call to make: rows at canonical positions, from the first incomplete layer.
  const FetchCall& canonical() const { return canonical_; }
  // Starts an attempt. Rows of its first layer are fetched again.
  FetchFrom Resume();
  // Returns the run's place in the cache, or an empty list if it has too many spans.
  ScatterList Spans(const RowRun& run) const;
  // Splices the next run, and returns once that is done. If `run.rows` is empty, the rows are
  // already in their spans and are rotated in place.
  //   Errors of Backend::Scatter and of `stream`.
  absl::Status Take(const FetchedRows& run, ComputeStream& stream);

  // The number of complete layers, over all chunks.
  uint64_t whole_count() const { return whole_count_; }
  bool whole() const { return next_.chunk == canonical_.chunk_end; }
  uint64_t rows_taken() const { return rows_taken_; }
  // Makes the rows visible.
  //   DataLoss            some rows have not arrived.
  absl::Status Commit() &&;

  // Returns `status` with the incomplete layers and the blocks that are freed.
  absl::Status Describe(const absl::Status& status) const;

 private:
  CacheFetch(const FetchCall& call, const PagedCache& cache) : call_(call), cache_(cache) {}
  void EnterChunk();
  absl::Status SpliceRun(const FetchedRows& run, ComputeStream& stream);
  int64_t DeltaOf(uint32_t chunk) const;
  uint64_t RowOf(uint32_t chunk) const { return row_of_chunk_[chunk - call_.chunk_begin]; }

  const FetchCall& call_;
  const PagedCache& cache_;
  FetchCall canonical_;
  std::optional<CacheReservation> reservation_;  // unset if the chunks have no tokens
  RopeRotation rotation_{RopeParams(), 0, 0};    // the rotation of next_.chunk
  FetchFrom next_;
  uint32_t next_token_ = 0;
  // The row of each chunk's first token in the reservation, from chunk_begin on.
  std::vector<uint64_t> row_of_chunk_;
  uint64_t whole_count_ = 0;
  uint64_t rows_taken_ = 0;
};

}  // namespace ckv
