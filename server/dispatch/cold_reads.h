// Reads chunks that are on disk for the requests that ask for them, beside the polling thread. One
// request at a time.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/cold_rows.h"
#include "server/lane_set.h"
#include "server/ready_request.h"
#include "server/side_thread.h"
#include "store/chunk_store.h"

namespace ckv {

// How many bytes of selected rows are read from a chunk's file before it is read whole: as many as
// it has. Whatever comes next, this reads at most twice what the best choice would have.
//
// Belongs to the dispatcher's thread; only the reading runs on a thread of its own. One request's
// rows at a time: the next one's are read when the last one was answered.
class ColdReads {
 public:
  // `store` must outlive it. `tell` wakes the dispatcher; it is called on the reading thread.
  ColdReads(ChunkStore* store, absl::AnyInvocable<void()> tell);

  bool idle() const { return thread_->idle() && held_.expired(); }
  bool reading() const { return !thread_->idle(); }
  bool finished() const { return thread_->finished(); }

  // While idle: reads what the request needs. Of a chunk that it attends as a whole, fetches or
  // maps, all layers, into memory, where there is room; else, and of a chunk of which it selects
  // rows, those rows of the layer. Its lane is busy until Finish.
  //   InvalidArgument     malformed: the lane is to be closed.
  absl::Status Start(const ReadyRequest& ready, HolderLane& lane);

  // After finished. The request, with its rows, is to be queued again, or answered with the status,
  // unless its lane broke meanwhile. Its rows are held for as long as a copy of `ready` is there.
  struct Done {
    ReadyRequest ready;
    HolderLane* lane = nullptr;
    absl::Status status;
  };
  Done Finish();

  // Waits for the read in progress, of which nothing comes. Nothing is called after.
  void End();

 private:
  // A chunk behind a handle of the request, and the rows of it that are asked for.
  struct Wanted {
    ChunkLocator chunk;
    bool layer_is_enough = false;
    bool selected = false;
    std::span<const int32_t> indices;  // in the request's slot
  };

  absl::Status ListChunks(const ReadyRequest& ready);
  void Read();
  absl::Status ReadChunk(const Wanted& wanted, ColdRows& rows);
  absl::Status ReadLayer(const Wanted& wanted, ColdRows& rows);
  // Whether this many bytes more are to be read of the chunk without the rest of it.
  bool TakeShare(ChunkLocator chunk, uint64_t bytes, uint64_t chunk_bytes);

  ChunkStore* const store_;
  AttendRequest attend_;
  std::vector<Wanted> wanted_;  // of the request in progress
  std::vector<uint32_t> stripes_;
  // Of chunks that are not read whole yet, by slot: which chunk it was, and bytes read of it.
  struct Share {
    uint32_t generation = 0;
    uint64_t bytes = 0;
  };
  absl::flat_hash_map<uint32_t, Share> shares_;
  absl::Status status_;
  std::optional<ReadyRequest> ready_;
  HolderLane* lane_ = nullptr;
  std::weak_ptr<const ColdRows> held_;
  std::unique_ptr<SideThread> thread_;  // last: it uses what is above
};

}  // namespace ckv
