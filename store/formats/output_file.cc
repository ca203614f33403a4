// Writes one output. Resolve follows links to the destination. Then there are two ways:
//   file    OpenBeside opens a file without a name in the destination's folder, or one with a
//           temporary name; Finish syncs it, renames it, and syncs the folder
//   stream  OpenStream writes to a file without a name; Finish copies it to the pipe or device
// So an unfinished output never has its name. Check finds out before the work whether this can
// succeed.

#include "store/formats/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr int kLinkCountMax = 40;  // as the kernel follows
constexpr size_t kCopyBytes = 1u << 20;

std::string CannotWrite(const std::string& path, const char* why) {
  return absl::StrFormat("cannot write %s: %s", path, why);
}

// Returns the error of a call on `path` that set errno. A full disk is not Unavailable, because a
// retry would not help.
absl::Status SystemError(const std::string& path) {
  const std::string what = CannotWrite(path, std::strerror(errno));
  return errno == ENOSPC || errno == EDQUOT ? absl::ResourceExhaustedError(what)
                                            : absl::UnavailableError(what);
}

// Unique among the threads and processes that write this name at once.
std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  return absl::StrFormat("%s.%d.%d.tmp", path, getpid(), counter.fetch_add(1));
}

std::string FolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// Returns true if `link` is one of this process's open files: /proc/self/fd/1, or /dev/fd/1, as
// /dev/fd is a link into /proc.
bool IsOpenFile(const std::string& link) {
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::canonical(FolderOf(link), none);
  return !none && folder.string().starts_with("/proc/");
}

struct Destination {
  std::string path;  // the path, after the links if it is a file
  bool is_stream = false;
  std::optional<mode_t> mode;  // mode of the existing file
};

absl::StatusOr<Destination> Resolve(const std::string& path) {
  Destination destination;
  destination.path = path;
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    const auto refuse = [&](const char* what) {
      return absl::FailedPreconditionError(CannotWrite(path, what));
    };
    if (S_ISDIR(info.st_mode)) return refuse("it is a folder");
    if (S_ISBLK(info.st_mode)) return refuse("it is a block device");
    if (S_ISSOCK(info.st_mode)) return refuse("it is a socket");
    destination.is_stream = !S_ISREG(info.st_mode);
    if (destination.is_stream) return destination;
    destination.mode = info.st_mode & 0777;
  } else if (errno != ENOENT) {
    return absl::UnavailableError(CannotWrite(path, std::strerror(errno)));
  }
  for (int i = 0; i < kLinkCountMax; ++i) {
    std::error_code no_link;
    const std::filesystem::path target = std::filesystem::read_symlink(destination.path, no_link);
    if (no_link) return destination;
    // The shell has the file open, and would lose its own text.
    if (IsOpenFile(destination.path)) {
      return absl::FailedPreconditionError(
          CannotWrite(path, "it is an open file of this process; name the file itself"));
    }
    destination.path = (std::filesystem::path(destination.path).parent_path() / target).string();
  }
  return absl::UnavailableError(CannotWrite(path, std::strerror(ELOOP)));
}

bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

absl::Status OutputFile::Check(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const Destination destination, Resolve(path));
  if (destination.is_stream) {
    if (access(path.c_str(), W_OK) == 0) return absl::OkStatus();
    return absl::UnavailableError(CannotWrite(path, std::strerror(errno)));
  }
  const std::string probe = TemporaryName(destination.path);
  const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError(path);
  close(fd);
  unlink(probe.c_str());
  return absl::OkStatus();
}

bool OutputFile::IsStream(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const Destination destination, Resolve(path));
  OutputFile file;
  file.path_ = destination.path;
  CKV_RETURN_IF_ERROR(destination.is_stream ? file.OpenStream()
                                            : file.OpenBeside(destination.mode));
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::exchange(other.fd_, -1)),
      stream_fd_(std::exchange(other.stream_fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (stream_fd_ >= 0) close(stream_fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status OutputFile::Failed() const { return SystemError(path_); }

absl::Status OutputFile::OpenBeside(std::optional<mode_t> mode) {
  fd_ = open(FolderOf(path_).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    // NFS, FUSE and overlays of old kernels do not support files without names.
    const std::string name = TemporaryName(path_);
    fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) return Failed();
    temporary_ = name;
  }
  return mode && fchmod(fd_, *mode) != 0 ? Failed() : absl::OkStatus();
}

absl::Status OutputFile::OpenStream() {
  do {
    stream_fd_ = open(path_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  } while (stream_fd_ < 0 && errno == EINTR);
  if (stream_fd_ < 0) return Failed();
  std::error_code none;
  std::string held = (std::filesystem::temp_directory_path(none) / "ckv-XXXXXX").string();
  fd_ = mkostemp(held.data(), O_CLOEXEC);
  if (fd_ < 0) return SystemError(held);
  unlink(held.c_str());
  return absl::OkStatus();
}

absl::Status OutputFile::Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed();
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset_bytes += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::CopyToStream() {
  std::vector<std::byte> buffer(kCopyBytes);
  for (off_t offset = 0;;) {
    const ssize_t count = pread(fd_, buffer.data(), buffer.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed();
    if (count == 0) break;
    if (!WriteAll(stream_fd_, std::span(buffer).first(static_cast<size_t>(count)))) return Failed();
    offset += count;
  }
  return close(std::exchange(stream_fd_, -1)) == 0 ? absl::OkStatus() : Failed();
}

absl::Status OutputFile::Finish() && {
  if (stream_fd_ >= 0) return CopyToStream();
  if (fsync(fd_) != 0) return Failed();
  if (temporary_.empty()) {
    // A link cannot replace a file, so it gets a temporary name until the rename.
    const std::string name = TemporaryName(path_);
    const std::string self = absl::StrFormat("/proc/self/fd/%d", fd_);
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return Failed();
    }
    temporary_ = name;
  }
  if (close(std::exchange(fd_, -1)) != 0) return Failed();
  // A rename is durable once its directory is. Opens it first, so that this cannot fail after the
  // rename.
  const int folder = open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Failed();
  const absl::Cleanup close_folder = [folder] { close(folder); };
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failed();
  temporary_.clear();
  // EINVAL: this file system cannot sync a directory.
  return fsync(folder) == 0 || errno == EINVAL ? absl::OkStatus() : Failed();
}

absl::Status WriteOutput(const std::string& path, std::string_view text) {
  CKV_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  CKV_RETURN_IF_ERROR(file.Write(0, std::as_bytes(std::span(text))));
  return std::move(file).Finish();
}

}  // namespace ckv
