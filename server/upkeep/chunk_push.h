// Pushes chunks of this holder's store to another holder, which checks them like any put. A corpus
// thus moves without passing through the client that ordered the move.
//
//   ChunkPush push(store, &target, clock, {.ids = ids, .geometry = g, .tenant = "a"});
//   CKV_RETURN_IF_ERROR(push.Run([&](const PushedChunk& chunk) { return tell(chunk); },
//                                [&] { return drains; }));

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/chunk_store.h"

namespace ckv {

// Chunks of one push in flight. While the target syncs one to its device, the rows of another are
// in transit. A target accepts 16 puts at a time from all peers together.
inline constexpr uint32_t kPushDepth = 2;
// Time limit for one chunk. 144 MB, which is 2048 tokens of V3, make it at 2.5 MB/s.
inline constexpr Duration kPushPutTimeout = std::chrono::minutes(1);
// The maximum delay until a push notices that the ordering client is gone or that this holder
// drains.
inline constexpr Duration kPushSlice = std::chrono::milliseconds(200);

// The holder that receives the chunks. Thread-safe; every error names the peer that was called.
class PushTarget {
 public:
  virtual ~PushTarget() = default;

  // Returns the tensor checksums of the chunk at the target. Errors as HolderService.GetChunkInfo
  // in proto/ckv/v1/holder.proto.
  virtual absl::StatusOr<std::vector<uint64_t>> Query(const ChunkId& id, const Geometry& geometry,
                                                      const std::string& tenant,
                                                      Instant deadline) = 0;
  // Puts the chunk permanently. Without `rows`, sends only the header, to which a holder that has
  // the chunk returns AlreadyExists. That holder makes the chunk durable if it can, and removes the
  // chunk's time limit. Adds to `bytes_sent` while it sends. Errors as HolderService.PutChunk, and
  // errors of reading the rows.
  virtual absl::Status Put(const ChunkInfo& info, const Geometry& geometry,
                           const std::string& tenant, const ChunkRows* rows, Instant deadline,
                           uint64_t& bytes_sent) = 0;
  // Ends the calls in progress and all later ones with Cancelled.
  virtual void Cancel() = 0;
};

struct PushOrder {
  std::vector<ChunkId> ids;
  Geometry geometry;
  std::string tenant = {};  // the tenant that may read them, on both holders
  Instant deadline = kInstantMax;
};

struct PushedChunk {
  ChunkId id;
  bool reused = false;  // the target already had the chunk
  uint64_t bytes_sent = 0;
};

// Executes one order. Used by one thread.
class ChunkPush {
 public:
  // `store`, `target` and `clock` must outlive this object.
  ChunkPush(ChunkStore* store, PushTarget* target, Clock* clock, PushOrder order)
      : store_(*store), target_(*target), clock_(*clock), order_(std::move(order)) {
    outcomes_.resize(order_.ids.size());
  }

  // Pushes all chunks, kPushDepth at a time. Reports each to `on_chunk`, in order, on this thread.
  // Stops early if `on_chunk` returns false or `stopped` returns true. Call once.
  //   NotFound, FailedPrecondition    the chunk is not on this holder, belongs to another tenant,
  //                       or has another geometry.
  //   DataLoss            the chunk is damaged on this holder, or the target has other rows under
  //                       its id.
  //   Cancelled           the push was stopped early.
  //   Other errors are the target's. The error is that of the first chunk that fails, and names the
  //   chunk. Earlier chunks are at the target and were reported.
  absl::Status Run(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                   absl::FunctionRef<bool()> stopped) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Outcome = std::optional<absl::StatusOr<PushedChunk>>;  // empty while in progress

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Notify(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                      absl::FunctionRef<bool()> stopped) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PushedChunk> PushOne(const ChunkId& id);
  // Returns true if the target has the chunk and keeps it permanently.
  absl::StatusOr<bool> IsThere(const ChunkInfo& info, Instant deadline);

  ChunkStore& store_;
  PushTarget& target_;
  Clock& clock_;
  const PushOrder order_;
  absl::Mutex mu_;
  std::vector<Outcome> outcomes_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // next to push
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ckv
