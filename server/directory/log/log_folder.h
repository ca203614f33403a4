// A directory's state on disk: a folder of one snapshot and the logs after it.
//
//   FORMAT, LOCK     store/disk/owned_folder.h
//   log.1, log.2...  changes, in frames (server/directory/log/frame.h). Each log continues the
//                    previous one. Its first record has the number of bytes of that one that count
//   snapshot.N       the state before log.N: replaces all earlier logs
//   *.new            files being written; removed at the start
//
// A file gets its name once its first bytes are durable. A snapshot is written while the log
// continues, and earlier files are removed when it is durable. So a process that is killed at any
// instruction leaves a snapshot and all the logs after it.
//
// The folder is read whole or not at all. An unfinished frame at the end of the last log is cut,
// because its changes were never acknowledged. Anything else that is damaged or missing is refused.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/directory/log/change.h"
#include "server/directory/log/directory_image.h"
#include "store/disk/file_identity.h"
#include "store/disk/file_system.h"
#include "store/disk/owned_folder.h"

namespace ckv {

// The progress of Open, for people. Any thread may read it; it orders no other memory access.
struct ReplayProgress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> bytes_due{0};  // 0 until all files are found
  std::atomic<uint64_t> record_count{0};

  // From 0 to 100.
  int percent() const {
    const uint64_t due = bytes_due.load(std::memory_order_relaxed);
    return due == 0 ? 0 : static_cast<int>(bytes.load(std::memory_order_relaxed) * 100 / due);
  }
};

// The results of Open.
struct LogReplay {
  bool is_new = false;        // the folder was empty
  uint64_t folder_id = 0;     // random, from the folder's first start
  uint64_t record_count = 0;  // changes read, including those of the snapshot
  std::string cut;            // describes the bytes cut off the last log; mostly empty
};

// One thread at a time may append, while another one writes a snapshot. Any thread may read the
// sizes.
class LogFolder {
 public:
  // The limit of bytes of a snapshot's frame, unless one corpus takes more.
  static constexpr size_t kSnapshotFrameBytes = size_t{1} << 20;

  // Creates the folder or takes it over, and calls `replay` for every change in order: kPublish,
  // kDrop, kForget, kGap, kTenantKey, kDrain, kEpochs and kSnapshotBegin. An error of `replay` ends
  // the reading. `files` must outlive the folder. If `progress` is not null, it is updated
  // meanwhile. In addition to the errors below, returns those of FileSystem and of
  // OwnedFolder::Open.
  //   DataLoss            a file is damaged or missing; names it, the byte, and a remedy.
  //   FailedPrecondition  a later version of ckv wrote one of the files.
  static absl::StatusOr<std::unique_ptr<LogFolder>> Open(
      FileSystem* files, const std::string& path,
      absl::FunctionRef<absl::Status(DirectoryChange)> replay, ReplayProgress* progress = nullptr);
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  const std::string& path() const { return path_; }
  const LogReplay& replay() const { return replay_; }

  // Appends records as one frame, which is durable once this returns OK. After an error none of
  // them is ever read, unless the device misreports a write. A log whose sync failed is abandoned
  // for a new one.
  //   ResourceExhausted   the disk is full.
  //   Unavailable         the device failed.
  absl::Status Append(std::string_view records);
  // Ends the log and begins the next one. Returns Append's errors.
  absl::Status BeginLog();
  // The number of the log that Append writes.
  uint64_t log_number() const { return number_; }
  // Checks that the folder and the current log still have their names. If they do not, Append
  // continues to succeed, but what it writes is never found again. Any thread may call it; it makes
  // two system calls.
  //   Unavailable         the folder or the log was removed, moved or replaced; names which.
  absl::Status CheckThere() const ABSL_LOCKS_EXCLUDED(mu_);
  // Writes snapshot.`number` and removes the files that it replaces. `image` is the state before
  // the first change of log.`number`. Returns Append's errors; after one, the folder is unchanged.
  absl::Status WriteSnapshot(uint64_t number, const DirectoryImage& image);

  // Bytes of the logs that no snapshot replaces yet.
  uint64_t log_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes of the last snapshot; 0 if there is none.
  uint64_t snapshot_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct FoundLog;
  class Reader;
  LogFolder(FileSystem* files, const std::string& path, OwnedFolder owned)
      : files_(*files), path_(path), owned_(std::move(owned)) {}

  // Returns the number of a file "KIND.NUMBER", where `kind` is "log." or "snapshot.".
  static std::optional<uint64_t> NumberOf(std::string_view name, std::string_view kind);
  std::string LogPath(uint64_t number) const;
  std::string SnapshotPath(uint64_t number) const;
  absl::Status MakeLog(uint64_t number, const DirectoryChange& first);
  absl::Status WriteSnapshotFile(const std::string& path, uint64_t number,
                                 const DirectoryImage& image, uint64_t& bytes);
  void RemoveBefore(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  FileSystem& files_;
  const std::string path_;
  const OwnedFolder owned_;
  LogReplay replay_;

  // The current log, used by the appending thread.
  std::unique_ptr<File> file_;
  uint64_t number_ = 0;
  uint64_t end_ = 0;  // everything before this offset is durable
  uint64_t sequence_ = 0;
  // A sync failed, so the bytes after end_ are unknown, and the next log may or may not have its
  // name. Only a new log may be written to.
  bool is_broken_ = false;

  mutable absl::Mutex mu_;
  std::map<uint64_t, uint64_t> log_bytes_ ABSL_GUARDED_BY(mu_);  // by number
  uint64_t snapshot_number_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t snapshot_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // The current log.
  struct WrittenLog {
    uint64_t number = 0;
    FileIdentity file;
  };
  WrittenLog written_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
