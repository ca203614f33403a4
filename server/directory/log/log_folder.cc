// Writes a log folder. First the logs: a log begins under a temporary name, and gets its name with
// its first frame. Each append writes one frame and syncs it. Then the snapshots: a file is written
// and synced under a temporary name, renamed, and the folder is synced. Only after that the files
// that it replaces are removed. Last the checks and sizes, which any thread reads.

#include "server/directory/log/log_folder.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "server/directory/log/frame.h"

namespace ckv {

std::string LogFolder::LogPath(uint64_t number) const {
  return absl::StrCat(path_, "/log.", number);
}

std::string LogFolder::SnapshotPath(uint64_t number) const {
  return absl::StrCat(path_, "/snapshot.", number);
}

// A log is known by its name once it has its header and first frame.
absl::Status LogFolder::MakeLog(uint64_t number, const DirectoryChange& first) {
  const std::string temporary = absl::StrCat(LogPath(number), ".new");
  absl::Status removed = files_.Remove(temporary);  // left by a try that failed
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  absl::Cleanup remove = [&] { (void)files_.Remove(temporary); };
  std::string records;
  AppendRecord(first, records);
  const std::string bytes =
      EncodeLogFileHeader(LogFileKind::kLog, number) + EncodeFrame(0, records);
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.Create(temporary));
  CKV_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(bytes))));
  CKV_RETURN_IF_ERROR(file->Sync());
  CKV_RETURN_IF_ERROR(files_.Rename(temporary, LogPath(number)));
  std::move(remove).Cancel();
  if (absl::Status synced = files_.SyncFolder(path_); !synced.ok()) {
    // Its name may be there after a power loss, and says where the log before ends.
    is_broken_ = true;
    return synced;
  }
  file_ = std::move(file);
  number_ = number;
  end_ = bytes.size();
  sequence_ = 1;
  is_broken_ = false;
  const FileIdentity identity = IdentityAt(LogPath(number));
  absl::MutexLock lock(&mu_);
  written_ = {number, identity};
  log_bytes_[number] = end_;
  return absl::OkStatus();
}

absl::Status LogFolder::BeginLog() {
  DirectoryChange first;
  first.kind = ChangeKind::kContinues;
  first.log_number = number_;
  first.log_bytes = end_;
  return MakeLog(number_ + 1, first);
}

absl::Status LogFolder::Append(std::string_view records) {
  if (is_broken_) CKV_RETURN_IF_ERROR(BeginLog());
  const std::string frame = EncodeFrame(sequence_, records);
  absl::Status status = file_->WriteAt(end_, std::as_bytes(std::span(frame)));
  const bool is_written = status.ok();
  if (is_written) status = file_->Sync();
  if (!status.ok()) {
    // Takes back what was written. After a failed sync that may not be enough: the next log says
    // that this one ends here.
    const bool is_cut = file_->Resize(end_).ok();
    is_broken_ = is_written || !is_cut;
    return status;
  }
  end_ += frame.size();
  ++sequence_;
  absl::MutexLock lock(&mu_);
  log_bytes_[number_] = end_;
  return absl::OkStatus();
}

namespace {

// Writes the frames of one file in order.
class FrameWriter {
 public:
  explicit FrameWriter(File* file) : file_(*file) {}

  absl::Status WriteRaw(std::string_view bytes) {
    CKV_RETURN_IF_ERROR(file_.WriteAt(bytes_, std::as_bytes(std::span(bytes))));
    file_.StartWriteback(bytes_, bytes.size());
    bytes_ += bytes.size();
    return absl::OkStatus();
  }
  // Adds a record, and writes a frame once there is enough for one.
  absl::Status Add(const DirectoryChange& change) {
    AppendRecord(change, records_);
    return records_.size() < LogFolder::kSnapshotFrameBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Flush() {
    if (records_.empty()) return absl::OkStatus();
    CKV_RETURN_IF_ERROR(WriteRaw(EncodeFrame(sequence_++, records_)));
    records_.clear();
    return absl::OkStatus();
  }
  uint64_t bytes() const { return bytes_; }

 private:
  File& file_;
  std::string records_;
  uint64_t sequence_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::Status LogFolder::WriteSnapshotFile(const std::string& path, uint64_t number,
                                          const DirectoryImage& image, uint64_t& bytes) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Create(path));
  FrameWriter writer(file.get());
  CKV_RETURN_IF_ERROR(writer.WriteRaw(EncodeLogFileHeader(LogFileKind::kSnapshot, number)));
  CKV_RETURN_IF_ERROR(ForEachChange(
      image, replay_.folder_id, [&](const DirectoryChange& change) { return writer.Add(change); }));
  CKV_RETURN_IF_ERROR(writer.Flush());
  bytes = writer.bytes();
  return file->Sync();
}

absl::Status LogFolder::WriteSnapshot(uint64_t number, const DirectoryImage& image) {
  const std::string temporary = absl::StrCat(SnapshotPath(number), ".new");
  absl::Cleanup remove = [&] { (void)files_.Remove(temporary); };
  uint64_t bytes = 0;
  CKV_RETURN_IF_ERROR(WriteSnapshotFile(temporary, number, image, bytes));
  CKV_RETURN_IF_ERROR(files_.Rename(temporary, SnapshotPath(number)));
  std::move(remove).Cancel();
  if (absl::Status synced = files_.SyncFolder(path_); !synced.ok()) {
    // The files before it are still there, and say the same.
    (void)files_.Remove(SnapshotPath(number));
    return synced;
  }
  {
    absl::MutexLock lock(&mu_);
    snapshot_number_ = number;
    snapshot_bytes_ = bytes;
  }
  RemoveBefore(CKV_PLANTED_BUG("log-tail") ? number + 1 : number);
  return absl::OkStatus();
}

// Files that a snapshot replaces. One that cannot be removed now is removed at the next start.
void LogFolder::RemoveBefore(uint64_t number) {
  {
    absl::MutexLock lock(&mu_);
    log_bytes_.erase(log_bytes_.begin(), log_bytes_.lower_bound(number));
  }
  const auto entries = files_.List(path_);
  if (!entries.ok()) return;
  for (const FolderEntry& entry : *entries) {
    for (const std::string_view kind : {"log.", "snapshot."}) {
      const auto of_entry = NumberOf(entry.name, kind);
      if (of_entry && *of_entry < number) (void)files_.Remove(absl::StrCat(path_, "/", entry.name));
    }
  }
}

absl::Status LogFolder::CheckThere() const {
  CKV_RETURN_IF_ERROR(owned_.CheckThere());
  for (;;) {
    WrittenLog looked_at;
    {
      absl::MutexLock lock(&mu_);
      looked_at = written_;
    }
    absl::Status there = CheckNamed(LogPath(looked_at.number), looked_at.file);
    if (there.ok()) return there;
    absl::MutexLock lock(&mu_);
    // Otherwise a snapshot has replaced it meanwhile, and another log is written.
    if (written_.number == looked_at.number) return there;
  }
}

uint64_t LogFolder::log_bytes() const {
  absl::MutexLock lock(&mu_);
  uint64_t bytes = 0;
  for (const auto& [number, of_log] : log_bytes_) bytes += of_log;
  return bytes;
}

uint64_t LogFolder::snapshot_bytes() const {
  absl::MutexLock lock(&mu_);
  return snapshot_bytes_;
}

}  // namespace ckv
