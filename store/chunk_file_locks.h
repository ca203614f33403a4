// Locks the files of chunks: one thread at a time works on a chunk's file.

#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "proto/ids.h"

namespace ckv {

// Thread-safe.
class ChunkFileLocks {
 public:
  // Waits until no other thread has locked the chunk's file, and locks it.
  void Lock(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto free = [this, &id]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !locked_.contains(id); };
    mu_.Await(absl::Condition(&free));
    locked_.insert(id);
  }
  void Unlock(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    locked_.erase(id);
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_set<ChunkId> locked_ ABSL_GUARDED_BY(mu_);
};

// Holds the lock of one chunk's file until the end of the scope.
class ChunkFileLock {
 public:
  // `locks` must outlive this object.
  ChunkFileLock(ChunkFileLocks* locks, const ChunkId& id) : locks_(locks), id_(id) {
    locks_->Lock(id_);
  }
  ~ChunkFileLock() { locks_->Unlock(id_); }
  ChunkFileLock(const ChunkFileLock&) = delete;
  ChunkFileLock& operator=(const ChunkFileLock&) = delete;

 private:
  ChunkFileLocks* const locks_;
  const ChunkId id_;
};

}  // namespace ckv
