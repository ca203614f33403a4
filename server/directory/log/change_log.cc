// In the order of a change: Submit encodes and queues it, the appending thread takes a batch,
// writes and syncs it as one frame, and settles each change of the batch. Between two batches it
// may begin a new log and take an image of the state. The second thread writes the image as a
// snapshot. The image is taken by the appending thread, because no change is settled meanwhile: so
// the snapshot has exactly the changes of all earlier logs.

#include "server/directory/log/change_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/directory/log/frame.h"

namespace ckv {
namespace {

constexpr char kRefuses[] = "the directory's log, which refuses the change";

}  // namespace

absl::StatusOr<std::unique_ptr<ChangeLog>> ChangeLog::Open(
    const ChangeLogOptions& options, absl::FunctionRef<absl::Status(DirectoryChange)> replay) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<LogFolder> folder,
                       LogFolder::Open(options.files, options.path, replay, options.progress));
  return std::unique_ptr<ChangeLog>(new ChangeLog(options, std::move(folder)));
}

ChangeLog::ChangeLog(const ChangeLogOptions& options, std::unique_ptr<LogFolder> folder)
    : options_(options), folder_(std::move(folder)) {
  const Instant now = options_.clock->Now();
  next_snapshot_ = now;
  last_snapshot_ = now;
}

void ChangeLog::Start(ChangeSink* sink) {
  CKV_CHECK(sink_ == nullptr);
  sink_ = sink;
  appender_ = Thread([this] { Append(); });
  snapshotter_ = Thread([this] { WriteSnapshots(); });
}

ChangeLog::~ChangeLog() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (sink_ == nullptr) return;
  appender_.join();
  {
    absl::MutexLock lock(&mu_);
    is_appended_ = true;
  }
  snapshotter_.join();
}

absl::Status ChangeLog::Submit(std::shared_ptr<const DirectoryChange> change) {
  Queued queued;
  AppendRecord(*change, queued.record);
  queued.change = std::move(change);
  if (queued.record.size() > kFramePayloadBytesMax) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a change of %d bytes, limit %d", queued.record.size(), kFramePayloadBytesMax));
  }
  absl::MutexLock lock(&mu_);
  if (stop_) return absl::UnavailableError("the directory is stopping");
  const bool full = queue_.size() >= kQueuedCountMax ||
                    (!queue_.empty() && queued_bytes_ + queued.record.size() > kQueuedBytesMax);
  if (full) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d changes of %d bytes wait for the disk of %s", queue_.size(), queued_bytes_, path()));
  }
  queued_bytes_ += queued.record.size();
  queue_.push_back(std::move(queued));
  return absl::OkStatus();
}

std::deque<ChangeLog::Queued> ChangeLog::TakeBatch() {
  std::deque<Queued> batch;
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &ChangeLog::HasWork));
  size_t bytes = 0;
  while (!queue_.empty() &&
         (batch.empty() || bytes + queue_.front().record.size() <= kBatchBytesMax)) {
    bytes += queue_.front().record.size();
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  queued_bytes_ -= bytes;
  return batch;
}

void ChangeLog::Append() {
  for (;;) {
    const std::deque<Queued> batch = TakeBatch();
    if (batch.empty()) return;
    if (const absl::Status looked = LastLook(); !looked.ok()) {
      Settle(batch, looked);
      continue;  // nothing is to be written to a folder that is another one
    }
    absl::Status status = AwaitShortLog();
    if (status.ok()) {
      std::string records;
      for (const Queued& queued : batch) records += queued.record;
      status = folder_->Append(records);
    }
    Settle(batch, Annotate(status, kRefuses));
    MaybeBeginSnapshot();
  }
}

void ChangeLog::Look() {
  const absl::Status found = Annotate(folder_->CheckThere(), kRefuses);
  absl::Status before;
  {
    absl::MutexLock lock(&mu_);
    before = std::exchange(looked_, found);
    // A write of just before the folder went may have ended well since.
    if (!found.ok() || stats_.last_error == before) stats_.last_error = found;
  }
  if (!found.ok() && before.ok()) Log().error("{}", std::string(found.message()));
  if (found.ok() && !before.ok()) Log().warn("the directory's log is where it was again");
}

absl::Status ChangeLog::LastLook() const {
  absl::MutexLock lock(&mu_);
  return looked_;
}

void ChangeLog::Settle(const std::deque<Queued>& batch, const absl::Status& status) {
  absl::Status before;
  {
    absl::MutexLock lock(&mu_);
    before = std::exchange(stats_.last_error, status);
    if (status.ok()) {
      ++stats_.sync_count;
      stats_.change_count += batch.size();
    } else {
      ++stats_.failure_count;
    }
  }
  // Logged when it begins and when it ends, not at every change.
  if (!status.ok() && before.ok()) Log().error("{}", std::string(status.message()));
  if (status.ok() && !before.ok()) Log().warn("the directory's log takes changes again");
  for (const Queued& queued : batch) sink_->Settle(*queued.change, status);
}

void ChangeLog::MaybeBeginSnapshot() {
  if (folder_->log_bytes() <= LogBytesDue()) return;
  {
    absl::MutexLock lock(&mu_);
    if (is_writing_ || options_.clock->Now() < next_snapshot_) return;
    is_writing_ = true;
  }
  // Between two changes: the state is what all logs before the new one gave.
  if (const absl::Status begun = folder_->BeginLog(); !begun.ok()) {
    NoteSnapshot(begun);
    return;
  }
  SnapshotJob job = {folder_->log_number(), sink_->Image()};
  absl::MutexLock lock(&mu_);
  job_ = std::move(job);
}

// A snapshot that fails lets the log grow: changes go on as long as the disk takes them.
absl::Status ChangeLog::AwaitShortLog() {
  const bool is_long = folder_->log_bytes() > kLogFactorMax * LogBytesDue();
  if (!is_long) {
    short_log_deadline_.reset();
    return absl::OkStatus();
  }
  if (!short_log_deadline_) short_log_deadline_ = options_.clock->Now() + kShortLogWaitMax;
  absl::MutexLock lock(&mu_);
  const auto is_written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !is_writing_; };
  if (options_.clock->Await(mu_, absl::Condition(&is_written), *short_log_deadline_)) {
    short_log_deadline_.reset();
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "its %d bytes are too many, and the disk of %s did not take a snapshot within %d s",
      folder_->log_bytes(), path(), kShortLogWaitMax / std::chrono::seconds(1)));
}

void ChangeLog::WriteSnapshots() {
  for (;;) {
    std::optional<SnapshotJob> job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &ChangeLog::HasJob));
      std::swap(job, job_);
    }
    if (!job) return;
    NoteSnapshot(folder_->WriteSnapshot(job->number, job->image));
  }
}

void ChangeLog::NoteSnapshot(const absl::Status& status) {
  if (!status.ok()) {
    Log().error("the directory's log grows, because no snapshot can be written: {}",
                std::string(status.message()));
  }
  absl::MutexLock lock(&mu_);
  is_writing_ = false;
  const Instant now = options_.clock->Now();
  if (status.ok()) {
    ++stats_.snapshot_count;
    last_snapshot_ = now;
  } else {
    ++stats_.snapshot_failure_count;
    next_snapshot_ = now + kSnapshotPause;
  }
}

ChangeLog::Stats ChangeLog::stats() const {
  const uint64_t log_bytes = folder_->log_bytes();
  const uint64_t snapshot_bytes = folder_->snapshot_bytes();
  absl::MutexLock lock(&mu_);
  Stats stats = stats_;
  stats.log_bytes = log_bytes;
  stats.snapshot_bytes = snapshot_bytes;
  stats.snapshot_age = options_.clock->Now() - last_snapshot_;
  return stats;
}

}  // namespace ckv
