// Pushes chunks of this holder's store to another holder, which checks them like any put. So a
// corpus moves without passing through the client that ordered the move.
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

// Chunks of one push in flight. While the target syncs one to its device, the rows of another
// travel. A target takes 16 puts at a time from all peers together.
inline constexpr uint32_t kPushDepth = 2;
// Limit of one chunk. 144 MB, which is 2048 tokens of V3, make it at 2.5 MB/s.
inline constexpr Duration kPushPutTimeout = std::chrono::minutes(1);
// How late a push notices that the ordering client is gone, or that this holder drains.
inline constexpr Duration kPushSlice = std::chrono::milliseconds(200);

// The holder that gets the chunks. Thread-safe; every error names the peer that was asked.
class PushTarget {
 public:
  virtual ~PushTarget() = default;

  // Returns the chunk's layer checksums there. Errors as HolderService.GetChunkInfo in
  // proto/ckv/v1/holder.proto.
  virtual absl::StatusOr<std::vector<uint64_t>> Ask(const ChunkId& id, const Geometry& geometry,
                                                    const std::string& tenant,
                                                    Instant deadline) = 0;
  // Puts the chunk, to stay. Without `rows` it sends only the header, which a holder that has the
  // chunk answers with AlreadyExists. That holder makes the chunk durable if it can, and keeps it
  // for good if it had a time limit. Adds to `bytes_sent` as it goes. Errors as
  // HolderService.PutChunk, and errors of reading the rows.
  virtual absl::Status Put(const ChunkInfo& info, const Geometry& geometry,
                           const std::string& tenant, const ChunkRows* rows, Instant deadline,
                           uint64_t& bytes_sent) = 0;
  // Ends the calls in progress and all later ones with Cancelled.
  virtual void Cancel() = 0;
};

struct PushOrder {
  std::vector<ChunkId> ids;
  Geometry geometry;
  std::string tenant = {};  // the tenant that may read them, here and there
  Instant deadline = kInstantMax;
};

struct PushedChunk {
  ChunkId id;
  bool reused = false;  // the target had it already
  uint64_t bytes_sent = 0;
};

// Executes one order. It is used by one thread.
class ChunkPush {
 public:
  // All arguments must outlive it.
  ChunkPush(ChunkStore* store, PushTarget* target, Clock* clock, PushOrder order)
      : store_(*store), target_(*target), clock_(*clock), order_(std::move(order)) {
    outcomes_.resize(order_.ids.size());
  }

  // Pushes all chunks, kPushDepth at a time. It reports each to `on_chunk`, in order, on this
  // thread. It stops early if `on_chunk` returns false or `stopped` returns true. Call it once.
  //   NotFound, FailedPrecondition   the chunk is not here, belongs to another tenant, or has
  //   another
  //                       geometry.
  //   DataLoss            the chunk is damaged here, or the target has other rows under its id.
  //   Cancelled           it was stopped.
  //   Other errors are the target's. The error is that of the first chunk that fails, and names it.
  //   Earlier chunks are there and were reported.
  absl::Status Run(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                   absl::FunctionRef<bool()> stopped) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Outcome = std::optional<absl::StatusOr<PushedChunk>>;  // empty while in progress

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Tell(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                    absl::FunctionRef<bool()> stopped) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PushedChunk> PushOne(const ChunkId& id);
  // Returns true if the target has the chunk and keeps it for good.
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
