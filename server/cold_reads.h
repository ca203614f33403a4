// Reads chunks that are on disk for the requests that ask for them, beside the polling thread. One
// request at a time.

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/lane_set.h"
#include "server/ready_request.h"
#include "server/side_thread.h"
#include "store/chunk_store.h"

namespace ckv {

// Belongs to the dispatcher's thread; only the reading runs on a thread of its own. What it read
// stays pinned until LetGo or the next read, so that the request it was read for finds it.
class ColdReads {
 public:
  // `store` must outlive it. `tell` wakes the dispatcher; it is called on the reading thread.
  ColdReads(ChunkStore* store, absl::AnyInvocable<void()> tell);

  bool idle() const { return thread_->idle(); }
  bool finished() const { return thread_->finished(); }

  // While idle: reads every chunk that the request names. Its lane is busy until Finish.
  //   InvalidArgument     malformed: the lane is to be closed.
  absl::Status Start(const ReadyRequest& ready, HolderLane& lane);

  // After finished. The request is to be queued again, or answered with the status, unless its lane
  // broke meanwhile.
  struct Done {
    ReadyRequest ready;
    HolderLane* lane = nullptr;
    absl::Status status;
  };
  Done Finish();

  // While idle: the request that was read for last had its turn, so its chunks may be evicted.
  void LetGo() { pins_.clear(); }

  // Waits for the read in progress, of which nothing comes. Nothing is called after.
  void End();

 private:
  absl::Status ListChunks(const ReadyRequest& ready);
  void Read();

  ChunkStore* const store_;
  AttendRequest attend_;
  std::vector<ChunkLocator> chunks_;  // of the request in progress
  std::vector<ChunkPin> pins_;        // of the last one
  absl::Status status_;
  std::optional<ReadyRequest> ready_;
  HolderLane* lane_ = nullptr;
  std::unique_ptr<SideThread> thread_;  // last: it uses what is above
};

}  // namespace ckv
