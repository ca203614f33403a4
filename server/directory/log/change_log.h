// Makes changes of a directory's state durable, many with one sync, and keeps the log short.

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "server/directory/log/log_folder.h"

namespace ckv {

// The state whose changes are made durable. The log's threads call it while they hold no lock of
// the log.
class ChangeSink {
 public:
  virtual ~ChangeSink() = default;
  // Called once for each change that Submit accepted, in the order of the log. If `status` is OK,
  // the change is durable and must now be applied. If not, it must never be applied.
  virtual void Settle(const DirectoryChange& change, const absl::Status& status) = 0;
  // Returns the state after the last settled change.
  virtual DirectoryImage Image() = 0;
};

// Makes changes durable. Thread-safe.
class ChangeJournal {
 public:
  virtual ~ChangeJournal() = default;
  // Queues the change. Another thread settles it later.
  //   ResourceExhausted   too many changes wait, or this one exceeds kFramePayloadBytesMax.
  //   Unavailable         the journal is stopping.
  virtual absl::Status Submit(std::shared_ptr<const DirectoryChange> change) = 0;
};

struct ChangeLogOptions {
  std::string path;
  FileSystem* files = FileSystem::Real();
  Clock* clock = Clock::Real();
  // A snapshot is written once the logs are longer than kLogFactor times the last snapshot, and
  // longer than this. Reading the default takes some 50 ms.
  uint64_t log_bytes_min = uint64_t{4} << 20;
  // If not null, Open writes its progress here. It must outlive Open.
  ReplayProgress* progress = nullptr;
};

// Thread-safe, except that Open must be called first and Start second. Owns two threads: one
// appends, the other writes snapshots.
//
//   snapshot    logs                              next state
//   none        short, or within kSnapshotPause   due, when the logs are too long
//               after a failure
//   due         a new one begins, and the state   writing; none, if no log can begin
//               before it is copied
//   writing     grow; changes wait for it once    none
//               they are kLogFactorMax too long
class ChangeLog final : public ChangeJournal {
 public:
  // A snapshot begins once the logs are this many times as long as the last one, so each byte of a
  // change is written twice.
  static constexpr uint64_t kLogFactor = 1;
  // Changes wait for a snapshot in progress once the logs are this many times the length at which a
  // snapshot begins. So the folder takes at most six copies of the state, and mostly two.
  static constexpr uint64_t kLogFactorMax = 4;
  // How long changes wait for the snapshot. After that they are refused until it is written or has
  // failed. A disk that writes 16 MB/s takes this long for the 480 MB of 1,000,000 chunks.
  static constexpr Duration kShortLogWaitMax = std::chrono::seconds(30);
  // The limit of waiting changes. A server has at most 4096 threads that submit them.
  static constexpr size_t kQueuedCountMax = 4096;
  // The limit of waiting bytes, unless one change alone has more.
  static constexpr size_t kQueuedBytesMax = size_t{256} << 20;
  // The limit of bytes per sync, unless one change alone has more.
  static constexpr size_t kBatchBytesMax = size_t{8} << 20;
  // The pause between a failed snapshot and the next try.
  static constexpr Duration kSnapshotPause = std::chrono::seconds(30);

  // Opens the folder and replays it. Errors are those of LogFolder::Open.
  static absl::StatusOr<std::unique_ptr<ChangeLog>> Open(
      const ChangeLogOptions& options, absl::FunctionRef<absl::Status(DirectoryChange)> replay);
  // Starts to accept changes. `sink` must outlive the log.
  void Start(ChangeSink* sink);
  // Makes submitted changes durable, finishes a snapshot in progress, and stops the threads.
  ~ChangeLog() override;

  absl::Status Submit(std::shared_ptr<const DirectoryChange> change) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // Checks that the folder and the log are still where they were opened. If not, last_error reports
  // that, and changes are refused until a later check finds them again. Call it about once a
  // second. A change that is made between their removal and the next check is lost with the folder.
  void Look() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& path() const { return folder_->path(); }
  const LogReplay& replay() const { return folder_->replay(); }

  struct Stats {
    uint64_t log_bytes = 0;       // logs that no snapshot replaces yet
    uint64_t snapshot_bytes = 0;  // size of the last snapshot
    uint64_t change_count = 0;    // durable since the start
    uint64_t sync_count = 0;      // syncs that made them durable
    uint64_t failure_count = 0;   // failed syncs and writes, whose changes were refused
    uint64_t snapshot_count = 0;  // written since the start
    uint64_t snapshot_failure_count = 0;
    Duration snapshot_age{0};  // since the last snapshot, or since the start
    absl::Status last_error;   // result of the last write or check; OK after a success
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Queued {
    std::shared_ptr<const DirectoryChange> change;
    std::string record;
  };
  ChangeLog(const ChangeLogOptions& options, std::unique_ptr<LogFolder> folder);

  void Append() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the changes of one sync from the queue. Empty only when all is done.
  std::deque<Queued> TakeBatch() ABSL_LOCKS_EXCLUDED(mu_);
  void Settle(const std::deque<Queued>& batch, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // The length of the logs at which a snapshot begins.
  uint64_t LogBytesDue() const {
    return std::max(options_.log_bytes_min, kLogFactor * folder_->snapshot_bytes());
  }
  void MaybeBeginSnapshot() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the result of the last check.
  absl::Status LastLook() const ABSL_LOCKS_EXCLUDED(mu_);
  //   ResourceExhausted   the log is too long, and no snapshot was written in time.
  absl::Status AwaitShortLog() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteSnapshots() ABSL_LOCKS_EXCLUDED(mu_);
  void NoteSnapshot(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !queue_.empty(); }
  bool HasJob() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_appended_ || job_.has_value();
  }

  const ChangeLogOptions options_;
  const std::unique_ptr<LogFolder> folder_;
  ChangeSink* sink_ = nullptr;
  // Until when the appending thread waits for a short log; unset while the log is short.
  std::optional<Instant> short_log_deadline_;

  struct SnapshotJob {
    uint64_t number = 0;
    DirectoryImage image;
  };
  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool is_appended_ ABSL_GUARDED_BY(mu_) = false;  // the appending thread has ended
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<SnapshotJob> job_ ABSL_GUARDED_BY(mu_);
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;  // a snapshot is in progress or due
  Instant next_snapshot_ ABSL_GUARDED_BY(mu_);
  Instant last_snapshot_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
  absl::Status looked_ ABSL_GUARDED_BY(mu_);  // result of the last check

  Thread appender_, snapshotter_;
};

}  // namespace ckv
