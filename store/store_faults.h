// Remembers the failures of a store for as long as the same operation would fail again.

#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/health/facts.h"
#include "proto/ids.h"

namespace ckv {

// The number of errors of a store since it was opened, and its current fault.
struct StoreErrors {
  uint64_t put_count = 0;    // puts that found no space, or that failed on the device
  uint64_t read_count = 0;   // reads of a chunk's file that failed on the device
  uint64_t check_count = 0;  // checks of a chunk's file that failed on the device
  StoreFault fault = StoreFault::kNone;
  std::string fault_text;
  uint64_t unreadable_count = 0;  // chunks whose last read failed on the device

  uint64_t total() const { return put_count + read_count + check_count; }
};

// Thread-safe. Each error is logged; the log limits how often.
//
// A failed put is a fault until a later put succeeds. If the put failed for lack of space, the
// fault also ends once there is space for as many bytes. That is space on the disk, with a free
// inode, or memory if the store has no disk.
class StoreFaults {
 public:
  // `path` is the store's folder, or empty. `clock` must outlive it.
  StoreFaults(std::string path, Clock* clock) : path_(std::move(path)), clock_(*clock) {}

  // Notes the outcome of the put of a chunk of `bytes` bytes. Errors that the caller caused are no
  // faults. `used_bytes` is the memory of rows at that time.
  void NotePut(const ChunkId& id, const absl::Status& status, uint64_t bytes, uint64_t used_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notes the refusal of a chunk that would not fit even into an empty store. That is no fault,
  // because other chunks fit.
  void NoteMisfit(const ChunkId& id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes whether the device could read the chunk's file. A damaged or missing file counts as read.
  void NoteRead(const ChunkId& id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteCheck(const ChunkId& id, bool is_readable) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the errors so far. `used_bytes` is the current memory of rows.
  StoreErrors Errors(uint64_t used_bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // How long a fault lasts if the store has a disk and only its memory was full. Pinned chunks held
  // that memory, and are soon released.
  static constexpr Duration kBusyFor = std::chrono::minutes(1);
  static constexpr size_t kUnreadableCountMax = 4096;

 private:
  bool IsOver(uint64_t used_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteReadable(const ChunkId& id, bool is_readable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  Clock& clock_;
  absl::Mutex mu_;
  StoreErrors errors_ ABSL_GUARDED_BY(mu_);
  // When the last put failed, its bytes, and the memory of rows at that time.
  Instant faulted_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool disk_was_full_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<ChunkId> unreadable_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
