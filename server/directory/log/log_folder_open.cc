// Reads the contents of a log folder when it is opened, in this order: the list of files, the first
// frame of each log from the latest snapshot on, that snapshot, and then these logs whole. The
// first frames are read ahead, because each has the number of bytes of the previous log that count.
// An unfinished frame is cut only at the end of the last log. The last whole frame is written and
// synced once more before anyone sees its changes.

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "server/directory/log/frame.h"
#include "server/directory/log/log_folder.h"

namespace ckv {
namespace {

constexpr FolderKind kDirectoryFolder = {
    .name = "directory folder", .owners = "directories", .version = 1};
constexpr char kRemedy[] =
    "restore the folder from a backup; or move it away and start with an empty one: holders report "
    "the corpora that they have chunks of, and ckvctl status shows which are not whole";

// Returns the same code, with the file's name and a remedy.
absl::Status Refuse(const absl::Status& status, const std::string& path, uint64_t offset,
                    bool is_log) {
  if (absl::IsFailedPrecondition(status))
    return Annotate(status, absl::StrFormat("%s, byte %d", path, offset));
  if (!absl::IsDataLoss(status)) return status;
  const std::string cut =
      is_log ? absl::StrFormat(
                   "; or lose every change from there on: truncate -s %d %s, and remove "
                   "the logs after it",
                   offset, path)
             : "";
  return absl::DataLossError(absl::StrFormat("%s is damaged at byte %d: %s\n  %s%s", path, offset,
                                             std::string(status.message()), kRemedy, cut));
}

absl::Status Missing(const std::string& path) {
  return absl::DataLossError(absl::StrFormat("%s is missing\n  %s", path, kRemedy));
}

}  // namespace

std::optional<uint64_t> LogFolder::NumberOf(std::string_view name, std::string_view kind) {
  uint64_t number = 0;
  if (!name.starts_with(kind)) return std::nullopt;
  const std::string digits(name.substr(kind.size()));
  if (!absl::SimpleAtoi(digits, &number) || number == 0 || absl::StrCat(number) != digits)
    return std::nullopt;
  return number;
}

// A log that exists, with its first frame read.
struct LogFolder::FoundLog {
  std::string path;
  uint64_t number = 0;
  uint64_t bytes = 0;  // those that count
  // Set while the log is read, and for the last one, which is written on.
  std::unique_ptr<File> file;
  std::unique_ptr<FrameReader> frames;
};

class LogFolder::Reader {
 public:
  // `progress` may be null.
  Reader(LogFolder* folder, absl::FunctionRef<absl::Status(DirectoryChange)> replay,
         ReplayProgress* progress)
      : folder_(*folder), files_(folder->files_), replay_(replay), progress_(progress) {}

  absl::Status Run() {
    CKV_RETURN_IF_ERROR(FindFiles());
    if (logs_.empty() && snapshots_.empty()) return Found();
    const uint64_t first = snapshots_.empty() ? 1 : *snapshots_.rbegin();
    CKV_RETURN_IF_ERROR(FindLogs(first));
    for (const FoundLog& log : found_) AddDue(log.bytes);
    if (!snapshots_.empty()) CKV_RETURN_IF_ERROR(ReadSnapshot(first));
    for (FoundLog& log : found_) CKV_RETURN_IF_ERROR(ReadLog(log, &log == &found_.back()));
    CKV_RETURN_IF_ERROR(TakeOver(found_.back()));
    folder_.RemoveBefore(first);
    return absl::OkStatus();
  }

 private:
  absl::Status FindFiles() {
    CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(folder_.path_));
    for (const FolderEntry& entry : entries) {
      if (const auto log = NumberOf(entry.name, "log.")) logs_.insert(*log);
      if (const auto snapshot = NumberOf(entry.name, "snapshot.")) snapshots_.insert(*snapshot);
      if (std::string_view(entry.name).ends_with(".new") && entry.name != "FORMAT.new")
        CKV_RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder_.path_, "/", entry.name)));
    }
    return absl::OkStatus();
  }

  absl::Status Found() {
    folder_.replay_.is_new = true;
    folder_.replay_.folder_id = RandomWord();
    DirectoryChange founded;
    founded.kind = ChangeKind::kFounded;
    founded.folder_id = folder_.replay_.folder_id;
    return folder_.MakeLog(1, founded);
  }

  absl::Status ReadSnapshot(uint64_t number) {
    const std::string path = folder_.SnapshotPath(number);
    CKV_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.OpenForReading(path));
    CKV_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
    absl::Status status = ReadLogFileHeader(*file, LogFileKind::kSnapshot, number);
    if (!status.ok()) return Refuse(status, path, 0, /*is_log=*/false);
    AddDue(bytes);
    FrameReader frames(file.get(), bytes);
    SnapshotCount count;
    uint64_t offset = frames.offset();
    do {
      offset = frames.offset();
      status =
          ReadFrame(frames, [&](DirectoryChange change) { return TakeOfSnapshot(change, count); });
    } while (status.ok() && frames.offset() != offset);
    if (status.ok() && (frames.is_torn() || !count.is_ended))
      status = absl::DataLossError("it ends too early");
    if (!status.ok()) return Refuse(status, path, offset, /*is_log=*/false);
    absl::MutexLock lock(&folder_.mu_);
    folder_.snapshot_number_ = number;
    folder_.snapshot_bytes_ = bytes;
    return absl::OkStatus();
  }

  struct SnapshotCount {
    bool is_begun = false, is_ended = false;
    uint64_t due = 0, corpora = 0;
  };
  absl::Status TakeOfSnapshot(DirectoryChange& change, SnapshotCount& count) {
    const bool first = !std::exchange(count.is_begun, true);
    if (first != (change.kind == ChangeKind::kSnapshotBegin) || count.is_ended)
      return absl::DataLossError("a record that is out of order");
    switch (change.kind) {
      case ChangeKind::kSnapshotBegin:
        count.due = change.corpus_count;
        folder_.replay_.folder_id = change.folder_id;
        break;
      case ChangeKind::kPublish:
        ++count.corpora;
        break;
      case ChangeKind::kGap:
      case ChangeKind::kForget:
      case ChangeKind::kTenantKey:
      case ChangeKind::kDrain:
        break;
      case ChangeKind::kSnapshotEnd:
        count.is_ended = true;
        if (count.corpora == count.due && change.corpus_count == count.due) return absl::OkStatus();
        return absl::DataLossError(
            absl::StrFormat("%d corpora where %d are due", count.corpora, count.due));
      default:
        return absl::DataLossError("a record that no snapshot has");
    }
    ++folder_.replay_.record_count;
    return replay_(std::move(change));
  }

  // Reads the start of all logs from `first` on. Each log records how many bytes of the previous
  // one count.
  absl::Status FindLogs(uint64_t first) {
    const uint64_t last = logs_.empty() ? first : std::max(first, *logs_.rbegin());
    for (uint64_t number = first; number <= last; ++number) {
      if (!logs_.contains(number)) return Missing(folder_.LogPath(number));
      FoundLog log;
      log.path = folder_.LogPath(number);
      log.number = number;
      CKV_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.OpenForReading(log.path));
      CKV_ASSIGN_OR_RETURN(log.bytes, file->Size());
      CKV_RETURN_IF_ERROR(Refuse(ReadLogFileHeader(*file, LogFileKind::kLog, number), log.path, 0,
                                 /*is_log=*/false));
      // Reads its first frame now, and the others once it is known where the log ends.
      FrameReader frames(file.get(), log.bytes);
      DirectoryChange record;
      absl::Status status = ReadFrame(frames, [&](DirectoryChange change) {
        record = std::move(change);
        return absl::OkStatus();
      });
      if (status.ok()) status = TakeFirst(record, number);
      CKV_RETURN_IF_ERROR(Refuse(status, log.path, kLogFileHeaderBytes, /*is_log=*/false));
      found_.push_back(std::move(log));
    }
    return absl::OkStatus();
  }

  absl::Status TakeFirst(const DirectoryChange& record, uint64_t number) {
    if (number == 1 && record.kind == ChangeKind::kFounded) {
      folder_.replay_.folder_id = record.folder_id;
      return absl::OkStatus();
    }
    if (number == 1 || record.kind != ChangeKind::kContinues || record.log_number != number - 1)
      return absl::DataLossError("its first record does not name what it continues");
    if (found_.empty()) return absl::OkStatus();
    if (found_.back().bytes < record.log_bytes) {
      return absl::DataLossError(absl::StrFormat("%s has %d bytes, and had %d", found_.back().path,
                                                 found_.back().bytes, record.log_bytes));
    }
    found_.back().bytes = record.log_bytes;
    return absl::OkStatus();
  }

  absl::Status ReadLog(FoundLog& log, bool is_last) {
    CKV_ASSIGN_OR_RETURN(
        log.file, is_last ? files_.OpenForWriting(log.path) : files_.OpenForReading(log.path));
    log.frames = std::make_unique<FrameReader>(log.file.get(), log.bytes);
    FrameReader& frames = *log.frames;
    uint64_t offset = frames.offset();
    absl::Status status =
        ReadFrame(frames, [](const DirectoryChange&) { return absl::OkStatus(); });
    while (status.ok() && frames.offset() != offset) {
      offset = frames.offset();
      status = ReadFrame(frames, [this](DirectoryChange change) { return TakeOfLog(change); });
    }
    if (status.ok() && frames.is_torn() && !is_last)
      status = absl::DataLossError("a frame ends behind the bytes that count");
    CKV_RETURN_IF_ERROR(Refuse(status, log.path, offset, /*is_log=*/true));
    if (!is_last) log.file.reset();
    absl::MutexLock lock(&folder_.mu_);
    folder_.log_bytes_[log.number] = log.bytes;
    return absl::OkStatus();
  }

  absl::Status TakeOfLog(DirectoryChange& change) {
    switch (change.kind) {
      case ChangeKind::kPublish:
      case ChangeKind::kDrop:
      case ChangeKind::kEpochs:
      case ChangeKind::kGap:
      case ChangeKind::kForget:
      case ChangeKind::kTenantKey:
      case ChangeKind::kDrain:
        ++folder_.replay_.record_count;
        return replay_(std::move(change));
      default:
        return absl::DataLossError("a record that is out of order");
    }
  }

  // Reads one frame and its records. At the end it takes nothing, and offset() stays.
  absl::Status ReadFrame(FrameReader& frames,
                         absl::FunctionRef<absl::Status(DirectoryChange)> take) {
    const uint64_t before = frames.offset();
    CKV_ASSIGN_OR_RETURN(const std::optional<std::string_view> payload, frames.Next());
    if (!payload) return absl::OkStatus();
    absl::Status status = ReadRecords(*payload, take);
    if (progress_ != nullptr) {
      progress_->bytes.fetch_add(frames.offset() - before, std::memory_order_relaxed);
      progress_->record_count.store(folder_.replay_.record_count, std::memory_order_relaxed);
    }
    return status;
  }
  void AddDue(uint64_t bytes) {
    if (progress_ != nullptr) progress_->bytes_due.fetch_add(bytes, std::memory_order_relaxed);
  }

  // Cuts the unfinished frame, if there is one, and continues after the last whole one.
  absl::Status TakeOver(FoundLog& log) {
    const uint64_t end = log.frames->offset();
    if (log.frames->is_torn()) {
      folder_.replay_.cut = absl::StrFormat(
          "%s: cut at byte %d: the %d bytes behind it are of a change that was not "
          "finished or acknowledged",
          log.path, end, log.bytes - end);
      CKV_RETURN_IF_ERROR(log.file->Resize(end));
    }
    // A process that was killed may have written a change, or made a file, and synced neither. From
    // now on they are shown, so they must outlive a power failure. If its sync failed, the system
    // has forgotten that it could not write the frame, so the frame is written again.
    CKV_RETURN_IF_ERROR(WriteAgain(*log.file, log.frames->last_offset(), end));
    CKV_RETURN_IF_ERROR(log.file->Sync());
    CKV_RETURN_IF_ERROR(files_.SyncFolder(folder_.path_));
    folder_.sequence_ = log.frames->sequence();
    folder_.end_ = end;
    folder_.number_ = log.number;
    folder_.file_ = std::move(log.file);
    const FileIdentity identity = IdentityAt(log.path);
    absl::MutexLock lock(&folder_.mu_);
    folder_.written_ = {log.number, identity};
    folder_.log_bytes_[log.number] = end;
    return absl::OkStatus();
  }

  // Writes the bytes [begin, end) again, unchanged. A full disk usually accepts them. If not, they
  // are shown all the same, as after a sync that failed unnoticed.
  static absl::Status WriteAgain(File& file, uint64_t begin, uint64_t end) {
    std::vector<std::byte> bytes(end - begin);
    CKV_RETURN_IF_ERROR(file.ReadAt(begin, bytes));
    const absl::Status written = file.WriteAt(begin, bytes);
    if (!written.ok()) {
      Log().warn("the last change in the directory's log cannot be written once more: {}",
                 std::string(written.message()));
    }
    return absl::OkStatus();
  }

  LogFolder& folder_;
  FileSystem& files_;
  const absl::FunctionRef<absl::Status(DirectoryChange)> replay_;
  ReplayProgress* const progress_;
  std::set<uint64_t> logs_, snapshots_;
  std::vector<FoundLog> found_;
};

absl::StatusOr<std::unique_ptr<LogFolder>> LogFolder::Open(
    FileSystem* files, const std::string& path,
    absl::FunctionRef<absl::Status(DirectoryChange)> replay, ReplayProgress* progress) {
  CKV_ASSIGN_OR_RETURN(OwnedFolder owned, OwnedFolder::Open(*files, path, kDirectoryFolder));
  std::unique_ptr<LogFolder> folder(new LogFolder(files, path, std::move(owned)));
  CKV_RETURN_IF_ERROR(Reader(folder.get(), replay, progress).Run());
  return folder;
}

}  // namespace ckv
