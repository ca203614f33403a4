// Turns at the files of chunks: one thread at a time works on a chunk's file.

#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "proto/ids.h"

namespace ckv {

// Thread-safe.
class ChunkTurns {
 public:
  // Waits until no other thread has the chunk's turn, and takes it.
  void Enter(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto free = [this, &id]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !taken_.contains(id); };
    mu_.Await(absl::Condition(&free));
    taken_.insert(id);
  }
  void Leave(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    taken_.erase(id);
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_set<ChunkId> taken_ ABSL_GUARDED_BY(mu_);
};

// A thread's turn at the file of one chunk, until the end of the scope.
class ChunkTurn {
 public:
  // `turns` must outlive this object.
  ChunkTurn(ChunkTurns* turns, const ChunkId& id) : turns_(turns), id_(id) { turns_->Enter(id_); }
  ~ChunkTurn() { turns_->Leave(id_); }
  ChunkTurn(const ChunkTurn&) = delete;
  ChunkTurn& operator=(const ChunkTurn&) = delete;

 private:
  ChunkTurns* const turns_;
  const ChunkId id_;
};

}  // namespace ckv
