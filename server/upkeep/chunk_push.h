// Pushes chunks of this holder's store to another holder, which checks them as any put: how a
// corpus moves without passing through whoever ordered the move.
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
#include "proto/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/chunk_store.h"

namespace ckv {

// Chunks of one push in flight: while the target syncs one to its device, the rows of another
// travel. A target takes 16 puts at a time from everyone.
inline constexpr uint32_t kPushDepth = 2;
// Of one chunk. 144 MB, as 2048 tokens of V3 are, make it at 2.5 MB/s.
inline constexpr Duration kPushPutTimeout = std::chrono::minutes(1);
// How long a push may not notice that whoever ordered it has gone, or that this holder drains.
inline constexpr Duration kPushSlice = std::chrono::milliseconds(200);

// The holder that gets the chunks. Thread-safe; every error says who was asked.
class PushTarget {
 public:
  virtual ~PushTarget() = default;

  // The chunk's layer checksums there. Errors as HolderService.GetChunkInfo in
  // proto/ckv/v1/holder.proto.
  virtual absl::StatusOr<std::vector<uint64_t>> Ask(const ChunkId& id, const Geometry& geometry,
                                                    const std::string& tenant,
                                                    Instant deadline) = 0;
  // Puts the chunk, to stay; without `rows` only its header, which a holder that has the chunk
  // answers with AlreadyExists: it makes the chunk durable where it can, and keeps one that it
  // would have dropped after a time. Adds to `bytes_sent` as it goes. Errors as
  // HolderService.PutChunk, and of reading the rows.
  virtual absl::Status Put(const ChunkInfo& info, const Geometry& geometry,
                           const std::string& tenant, const ChunkRows* rows, Instant deadline,
                           uint64_t& bytes_sent) = 0;
  // Ends the calls in progress, and those that come: Cancelled.
  virtual void Cancel() = 0;
};

struct PushOrder {
  std::vector<ChunkId> ids;
  Geometry geometry;
  std::string tenant = {};  // who may read them here, and there
  Instant deadline = kInstantMax;
};

struct PushedChunk {
  ChunkId id;
  bool reused = false;  // it was there
  uint64_t bytes_sent = 0;
};

// One order. Used by one thread.
class ChunkPush {
 public:
  // All must outlive it.
  ChunkPush(ChunkStore* store, PushTarget* target, Clock* clock, PushOrder order)
      : store_(*store), target_(*target), clock_(*clock), order_(std::move(order)) {
    outcomes_.resize(order_.ids.size());
  }

  // Pushes them all, kPushDepth at a time, and tells `on_chunk` of each, in order, on this thread;
  // stops early once that returns false or `stopped` true. Once.
  //   NotFound, FailedPrecondition   the chunk is not here, or not the tenant's; another geometry.
  //   DataLoss            damaged here, or the target has other rows under its id.
  //   Cancelled           stopped.
  //   and what the target says: of the first chunk that fails, which the error names; those before
  //   it are there and were told.
  absl::Status Run(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                   absl::FunctionRef<bool()> stopped) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Outcome = std::optional<absl::StatusOr<PushedChunk>>;  // empty: not yet

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Tell(absl::FunctionRef<bool(const PushedChunk&)> on_chunk,
                    absl::FunctionRef<bool()> stopped) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PushedChunk> PushOne(const ChunkId& id);
  // Whether the target has the chunk for good.
  absl::StatusOr<bool> IsThere(const ChunkInfo& info, Instant deadline);

  ChunkStore& store_;
  PushTarget& target_;
  Clock& clock_;
  const PushOrder order_;
  absl::Mutex mu_;
  std::vector<Outcome> outcomes_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // to be pushed
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ckv
