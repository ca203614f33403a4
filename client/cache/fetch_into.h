// A fetch into a paged cache: what is whole of it, and how it goes on where it broke.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/rope.h"
#include "client/fetch_plan.h"
#include "client/paged_cache.h"
#include "client/requester.h"
#include "transport/scatter_list.h"

namespace ckv {

// Attempts that bring no layer to its end, one after another: the first reopening is at once, the
// next ones wait 20, 80, 320 and 1280 ms, the time in which a holder's process restarts.
inline constexpr int kReopenCountMax = 5;
Duration ReopenWait(int reopening);  // 1 is the first
// Whether the error is a lane's or a session's, so that another one may cure it.
bool CanReopen(const absl::Status& status);

// Rows come in the order of chunk, layer, token, and each goes to its blocks as it comes. Belongs
// to one thread; borrows the call.
class CacheFetch {
 public:
  // Takes the blocks.
  //   InvalidArgument     no corpus, the chunks, the position, or layers other than the cache's.
  //   FailedPrecondition  another geometry than the cache's; the sequence is being extended.
  //   NotFound, ResourceExhausted  as PagedCache::Reserve.
  static absl::StatusOr<CacheFetch> Begin(const FetchCall& call, PagedCache& cache,
                                          CacheSequenceId sequence);

  // What to ask for: the call at canonical positions, from the first layer that is not whole.
  const FetchCall& canonical() const { return canonical_; }
  // An attempt begins: what came of the layer at which it does will come again.
  FetchFrom Resume();
  // Where the run lies in the cache, unless that is in too many pieces.
  ScatterList Pieces(const RowRun& run) const;
  // Splices the next run, or turns it where it is: one of no rows lies in its pieces already.
  absl::Status Take(const FetchedRows& run);

  // Layers of chunks that are whole.
  uint64_t whole_count() const { return whole_count_; }
  bool whole() const { return next_.chunk == canonical_.chunk_end; }
  uint64_t rows_taken() const { return rows_taken_; }
  // Shows the rows.
  //   DataLoss            not all of them came.
  absl::Status Commit() &&;

  // `status` with what is not whole, and the blocks that go back for it.
  absl::Status Describe(const absl::Status& status) const;

 private:
  CacheFetch(const FetchCall& call, const PagedCache& cache) : call_(call), cache_(cache) {}
  void EnterChunk();
  int64_t DeltaOf(uint32_t chunk) const;
  uint64_t RowOf(uint32_t chunk) const { return row_of_chunk_[chunk - call_.chunk_begin]; }

  const FetchCall& call_;
  const PagedCache& cache_;
  FetchCall canonical_;
  std::optional<CacheReservation> reservation_;  // none: the chunks have no tokens
  RopeRotation rotation_{RopeParams(), 0, 0};    // of next_.chunk
  FetchFrom next_;
  uint32_t next_token_ = 0;
  std::vector<uint64_t> row_of_chunk_;  // of its first token in the reservation; from chunk_begin
  uint64_t whole_count_ = 0;
  uint64_t rows_taken_ = 0;
};

}  // namespace ckv
