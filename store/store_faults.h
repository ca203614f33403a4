// Remembers what a store failed at, as long as it would fail again.

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

// Errors of a store since it was opened, and the fault of the moment.
struct StoreErrors {
  uint64_t put_count = 0;    // puts that found no room, or that the device failed
  uint64_t read_count = 0;   // reads of a chunk's file that the device failed
  uint64_t check_count = 0;  // checks of a chunk's file that the device failed
  StoreFault fault = StoreFault::kNone;
  std::string fault_text;
  uint64_t unreadable_count = 0;  // chunks that the device did not read at the last try

  uint64_t total() const { return put_count + read_count + check_count; }
};

// Thread-safe. Each error is logged; the log limits how often.
//
// A put that was refused is a fault until one succeeds. If there was no room, it also ends once
// there is room for as many bytes. That is on the disk, which needs an inode too, or in memory for
// a store without a disk.
class StoreFaults {
 public:
  // `path` is the store's folder, or empty. `clock` must outlive it.
  StoreFaults(std::string path, Clock* clock) : path_(std::move(path)), clock_(*clock) {}

  // Notes how the put of a chunk of so many bytes ended. Errors that the putter has caused are no
  // faults. `used_bytes` is the memory of rows then.
  void NotePut(const ChunkId& id, const absl::Status& status, uint64_t bytes, uint64_t used_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notes the refusal of a chunk that would not fit if the store were empty: no fault, because
  // others do.
  void NoteMisfit(const ChunkId& id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes whether the device read the chunk's file. A damaged or missing file was read.
  void NoteRead(const ChunkId& id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteCheck(const ChunkId& id, bool is_readable) ABSL_LOCKS_EXCLUDED(mu_);

  // `used_bytes` as now.
  StoreErrors Errors(uint64_t used_bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // A store with a disk whose memory was full: others held it, and it was free again soon.
  static constexpr Duration kBusyFor = std::chrono::minutes(1);
  static constexpr size_t kUnreadableCountMax = 4096;

 private:
  bool IsOver(uint64_t used_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteReadable(const ChunkId& id, bool is_readable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  Clock& clock_;
  absl::Mutex mu_;
  StoreErrors errors_ ABSL_GUARDED_BY(mu_);
  // The last put that was refused.
  Instant faulted_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool disk_was_full_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<ChunkId> unreadable_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
