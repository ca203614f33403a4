// Makes changes of a directory's state durable, many with one sync, and keeps the log short.

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "server/directory/log/log_folder.h"

namespace ckv {

// The state whose changes are kept. It is called by the log's threads, with no lock of the log
// held.
class ChangeSink {
 public:
  virtual ~ChangeSink() = default;
  // Called once for each change that Submit took, in the order of the log. With OK the change is
  // durable: it is to be applied now. With an error it never happens.
  virtual void Settle(const DirectoryChange& change, const absl::Status& status) = 0;
  // Returns the state after the last change that was settled.
  virtual DirectoryImage Image() = 0;
};

// Makes changes durable. Thread-safe.
class ChangeJournal {
 public:
  virtual ~ChangeJournal() = default;
  // Takes the change. It is settled later, by another thread.
  //   ResourceExhausted   too many changes wait.
  //   Unavailable         it is stopping.
  virtual absl::Status Submit(std::shared_ptr<const DirectoryChange> change) = 0;
};

struct ChangeLogOptions {
  std::string path;
  FileSystem* files = FileSystem::Real();
  Clock* clock = Clock::Real();
  // A snapshot is written once the logs are longer than kLogFactor times the last snapshot, and
  // longer than this. The default takes some 50 ms to read.
  uint64_t log_bytes_min = uint64_t{4} << 20;
  // Unless null, Open writes how far it has come. It must outlive Open.
  ReplayProgress* progress = nullptr;
};

// Thread-safe, except that Open is first and Start is second. It owns two threads: one appends, the
// other one writes snapshots.
class ChangeLog final : public ChangeJournal {
 public:
  // A snapshot is begun once the logs are this many times as long as the last one: each byte of a
  // change is written twice.
  static constexpr uint64_t kLogFactor = 1;
  // Changes wait for a snapshot in progress once the logs are this many times as long. So the
  // folder takes at most six copies of the state, and mostly two.
  static constexpr uint64_t kLogFactorMax = 4;
  // How long they wait for it. After that they are refused until it is written or has failed. A
  // disk that writes 16 MB/s takes this long for the 480 MB of 1,000,000 chunks.
  static constexpr Duration kShortLogWaitMax = std::chrono::seconds(30);
  // Changes that wait. A server has at most 4096 threads that call it.
  static constexpr size_t kQueuedCountMax = 4096;
  // Bytes that wait, unless one change alone has more.
  static constexpr size_t kQueuedBytesMax = size_t{256} << 20;
  // Bytes of changes that one sync takes, unless one change alone has more.
  static constexpr size_t kBatchBytesMax = size_t{8} << 20;
  // How long after a snapshot failed the next one is tried.
  static constexpr Duration kSnapshotPause = std::chrono::seconds(30);

  // Opens the folder and replays it. Errors are those of LogFolder::Open.
  static absl::StatusOr<std::unique_ptr<ChangeLog>> Open(
      const ChangeLogOptions& options, absl::FunctionRef<absl::Status(DirectoryChange)> replay);
  // Starts to take changes. `sink` must outlive the log.
  void Start(ChangeSink* sink);
  // Makes durable what was submitted, and ends. A snapshot in progress is finished.
  ~ChangeLog() override;

  absl::Status Submit(std::shared_ptr<const DirectoryChange> change) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // Looks whether the folder and the log are still where they were opened. If not, last_error says
  // so and changes are refused, until a later look finds them again. Call it about once a second:
  // a change that comes before the next look is lost with the folder.
  void Look() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& path() const { return folder_->path(); }
  const LogReplay& replay() const { return folder_->replay(); }

  struct Stats {
    uint64_t log_bytes = 0;       // logs that no snapshot replaces
    uint64_t snapshot_bytes = 0;  // the last snapshot
    uint64_t change_count = 0;    // durable since the start
    uint64_t sync_count = 0;      // syncs that made them durable
    uint64_t failure_count = 0;   // syncs and writes that failed: their changes were refused
    uint64_t snapshot_count = 0;  // written since the start
    uint64_t snapshot_failure_count = 0;
    Duration snapshot_age{0};  // since the last one, or since the start
    absl::Status last_error;   // the last write's or look's; OK after a success
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Queued {
    std::shared_ptr<const DirectoryChange> change;
    std::string record;
  };
  ChangeLog(const ChangeLogOptions& options, std::unique_ptr<LogFolder> folder);

  void Append() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes what one sync takes. Empty only when all is done.
  std::deque<Queued> TakeBatch() ABSL_LOCKS_EXCLUDED(mu_);
  void Settle(const std::deque<Queued>& batch, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // The length of the logs at which a snapshot is begun.
  uint64_t LogBytesDue() const {
    return std::max(options_.log_bytes_min, kLogFactor * folder_->snapshot_bytes());
  }
  void MaybeBeginSnapshot() ABSL_LOCKS_EXCLUDED(mu_);
  // How the last look ended.
  absl::Status LastLook() const ABSL_LOCKS_EXCLUDED(mu_);
  //   ResourceExhausted   the log is too long, and no snapshot came in time.
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
  // How long the thread that appends waits for a short log; unset while the log is short.
  std::optional<Instant> short_log_deadline_;

  struct SnapshotJob {
    uint64_t number = 0;
    DirectoryImage image;
  };
  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool is_appended_ ABSL_GUARDED_BY(mu_) = false;  // the thread that appends has ended
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<SnapshotJob> job_ ABSL_GUARDED_BY(mu_);
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;  // a snapshot, or one is due
  Instant next_snapshot_ ABSL_GUARDED_BY(mu_);
  Instant last_snapshot_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
  absl::Status looked_ ABSL_GUARDED_BY(mu_);  // how the last look ended

  std::thread appender_, snapshotter_;
};

}  // namespace ckv
