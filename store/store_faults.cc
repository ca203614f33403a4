#include "store/store_faults.h"

#include <utility>

#include "proto/base/log.h"
#include "store/disk/disk_space.h"

namespace ckv {
namespace {

StoreFault FaultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return StoreFault::kFull;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kNotFound:  // the folder
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return StoreFault::kFailing;
    default:
      return StoreFault::kNone;  // the putter's
  }
}

}  // namespace

void StoreFaults::NotePut(const ChunkId& id, const absl::Status& status, uint64_t bytes,
                          uint64_t used_bytes) {
  const StoreFault fault = FaultOf(status);
  if (!status.ok() && fault == StoreFault::kNone) return;
  const bool disk_is_full = !status.ok() && !HasSpaceForFile(path_, bytes).value_or(true);
  absl::MutexLock lock(&mu_);
  errors_.fault = fault;
  errors_.fault_text = std::string(status.message());
  if (status.ok()) return;
  ++errors_.put_count;
  faulted_ = clock_.Now();
  bytes_ = bytes;
  used_bytes_ = used_bytes;
  disk_was_full_ = disk_is_full;
  Log().error("chunk {} cannot be stored: {}", id.ToHex(), errors_.fault_text);
}

void StoreFaults::NoteMisfit(const ChunkId& id, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  ++errors_.put_count;
  Log().error("chunk {} cannot be stored: {}", id.ToHex(), std::string(status.message()));
}

void StoreFaults::NoteRead(const ChunkId& id, const absl::Status& status) {
  const bool fails = !status.ok() && !absl::IsNotFound(status) && !absl::IsDataLoss(status) &&
                     !absl::IsAborted(status);
  absl::MutexLock lock(&mu_);
  NoteReadable(id, !fails);
  if (!fails) return;
  ++errors_.read_count;
  Log().error("chunk {} cannot be read: {}", id.ToHex(), std::string(status.message()));
}

void StoreFaults::NoteCheck(const ChunkId& id, bool is_readable) {
  absl::MutexLock lock(&mu_);
  NoteReadable(id, is_readable);
  if (!is_readable) ++errors_.check_count;  // the checker logs it
}

void StoreFaults::NoteReadable(const ChunkId& id, bool is_readable) {
  if (is_readable) {
    if (!unreadable_.empty()) unreadable_.erase(id);
  } else if (unreadable_.size() < kUnreadableCountMax) {
    unreadable_.insert(id);
  }
  errors_.unreadable_count = unreadable_.size();
}

// A device that failed is trusted again after a put that succeeded, and not before.
bool StoreFaults::IsOver(uint64_t used_bytes) const {
  if (errors_.fault != StoreFault::kFull) return false;
  if (disk_was_full_) return HasSpaceForFile(path_, bytes_).value_or(false);
  if (!path_.empty()) return clock_.Now() - faulted_ > kBusyFor;
  return used_bytes + bytes_ <= used_bytes_;
}

StoreErrors StoreFaults::Errors(uint64_t used_bytes) {
  absl::MutexLock lock(&mu_);
  if (errors_.fault != StoreFault::kNone && IsOver(used_bytes)) {
    errors_.fault = StoreFault::kNone;
    errors_.fault_text.clear();
  }
  return errors_;
}

}  // namespace ckv
