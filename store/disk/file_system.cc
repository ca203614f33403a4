// The real file system, and helpers over the interface. RealFile has one descriptor, and
// RealFileSystem makes them; every call retries after a signal and turns errno into a status with
// the path. Stream reads from the device directly if enough bytes are not in the system's cache.
// WriteSmallFile writes to a temporary name, syncs, renames and syncs the folder.

#include "store/disk/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/disk/direct_stream.h"

namespace ckv {
namespace {

// Opening a file again and making a ring takes about as long as reading this many bytes.
constexpr uint64_t kDirectBytesMin = uint64_t{256} << 10;
absl::Status SystemError(int error, std::string_view what, const std::string& path) {
  const std::string text = absl::StrFormat(
      "%s %s: %s", what, path, std::error_code(error, std::generic_category()).message());
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

class RealFile final : public File {
 public:
  RealFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~RealFile() override { close(fd_); }

  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError(errno, "writing", path_);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
    return absl::OkStatus();
  }
  absl::Status Resize(uint64_t bytes) override {
    if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0)
      return SystemError(errno, "resizing", path_);
    return absl::OkStatus();
  }
  void StartWriteback(uint64_t offset, uint64_t bytes) override {
    (void)sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                          SYNC_FILE_RANGE_WRITE);
  }
  absl::Status Sync() override {
    if (fdatasync(fd_) != 0) return SystemError(errno, "syncing", path_);
    return absl::OkStatus();
  }
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError(errno, "reading", path_);
      if (count == 0) {
        return absl::DataLossError(
            absl::StrFormat("reading %s: it ends at byte %d", path_, offset));
      }
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
    return absl::OkStatus();
  }
  absl::Status Stream(uint64_t offset, uint64_t bytes, Take take) override {
    // Bytes in the system's cache are copied from there in less time.
    if (bytes < kDirectBytesMin || IsCached(fd_, offset, bytes))
      return absl::UnimplementedError("small, or in memory");
    return Annotate(StreamDirectly(fd_, offset, bytes, take), absl::StrCat("reading ", path_));
  }
  void DropCached() override { (void)posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }
  absl::StatusOr<uint64_t> Size() override {
    struct stat status;
    if (fstat(fd_, &status) != 0) return SystemError(errno, "reading", path_);
    return static_cast<uint64_t>(status.st_size);
  }

 private:
  const int fd_;
  const std::string path_;
};

class RealLock final : public FileLock {
 public:
  explicit RealLock(int fd) : fd_(fd) {}
  ~RealLock() override { close(fd_); }
  FileIdentity identity() const override { return IdentityOf(fd_); }

 private:
  const int fd_;
};

class RealFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    return Open(path, O_RDWR | O_CREAT | O_EXCL, "creating");
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) override {
    return Open(path, O_RDONLY, "opening");
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) override {
    return Open(path, O_RDWR, "opening");
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return SystemError(errno, "renaming to", to);
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return SystemError(errno, "removing", path);
    return absl::OkStatus();
  }
  absl::Status MakeFolder(const std::string& path) override {
    if (mkdir(path.c_str(), 0750) != 0 && errno != EEXIST)
      return SystemError(errno, "making folder", path);
    return absl::OkStatus();
  }
  absl::Status SyncFolder(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return SystemError(errno, "opening", path);
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error == 0 ? absl::OkStatus() : SystemError(error, "syncing", path);
  }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override {
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) return SystemError(errno, "listing", path);
    const absl::Cleanup close_folder = [folder] { closedir(folder); };
    std::vector<FolderEntry> entries;
    while (true) {
      errno = 0;
      const dirent* entry = readdir(folder);
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      FolderEntry found = {std::string(name), entry->d_type == DT_DIR};
      struct stat status;
      if (entry->d_type == DT_UNKNOWN &&
          stat(absl::StrCat(path, "/", found.name).c_str(), &status) == 0) {
        found.is_folder = S_ISDIR(status.st_mode);
      }
      entries.push_back(std::move(found));
    }
    if (errno != 0) return SystemError(errno, "listing", path);
    return entries;
  }

 private:
  static absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, int flags,
                                                    std::string_view what) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, 0640);
    if (fd < 0) return SystemError(errno, what, path);
    return std::make_unique<RealFile>(fd, path);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileLock>> FileSystem::Lock(const std::string& path,
                                                           std::string_view text) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("cannot make %s: %s", path, strerror(errno)));
  }
  auto lock = std::make_unique<RealLock>(fd);  // closes it
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat("%s is locked", path));
  }
  std::ignore = pwrite(fd, text.data(), text.size(), 0);
  return lock;
}

FileSystem* FileSystem::Real() {
  static RealFileSystem* const files = new RealFileSystem;
  return files;
}

absl::StatusOr<std::string> ReadSmallFile(FileSystem& files, const std::string& path,
                                          size_t bytes_max) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.OpenForReading(path));
  CKV_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  if (bytes > bytes_max) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d bytes, limit %d", path, bytes, bytes_max));
  }
  std::string text(bytes, '\0');
  CKV_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

absl::Status WriteSmallFile(FileSystem& files, const std::string& temporary,
                            const std::string& folder, const std::string& name,
                            std::string_view bytes) {
  absl::Cleanup remove = [&] { (void)files.Remove(temporary); };
  {
    CKV_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(temporary));
    CKV_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(bytes))));
    CKV_RETURN_IF_ERROR(file->Sync());
  }
  CKV_RETURN_IF_ERROR(files.Rename(temporary, absl::StrCat(folder, "/", name)));
  std::move(remove).Cancel();
  return files.SyncFolder(folder);
}

}  // namespace ckv
