#include "server/telemetry/span_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr mode_t kFileMode = 0640;  // spans name members and corpora; not for everybody

absl::Status Refused(const std::string& path, const char* why) {
  return absl::InvalidArgumentError(absl::StrFormat("trace.path: %s: %s", path, why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanFile>> SpanFile::Open(const std::string& path,
                                                         uint64_t bytes_max) {
  std::unique_ptr<SpanFile> file(new SpanFile(path, bytes_max));
  CKV_RETURN_IF_ERROR(file->Reopen());
  return file;
}

absl::Status SpanFile::Reopen() {
  // Without O_NONBLOCK a pipe without a reader would hold up the start.
  const int fd =
      open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, kFileMode);
  if (fd < 0) return Refused(path_, std::strerror(errno));
  absl::Cleanup close_it = [fd] { close(fd); };
  struct stat found {};
  if (fstat(fd, &found) != 0) return Refused(path_, std::strerror(errno));
  if (!S_ISREG(found.st_mode)) return Refused(path_, "is no regular file");
  if (flock(fd, LOCK_EX | LOCK_NB) != 0)
    return Refused(path_, "another process writes to it; each daemon needs a file of its own");
  char last = '\n';
  if (found.st_size > 0 && pread(fd, &last, 1, found.st_size - 1) != 1)
    return Refused(path_, std::strerror(errno));
  std::move(close_it).Cancel();
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  bytes_ = static_cast<uint64_t>(found.st_size);
  unfinished_ = last != '\n';
  return absl::OkStatus();
}

SpanFile::~SpanFile() {
  if (fd_ >= 0) close(fd_);
}

bool SpanFile::IsAtItsPath() const {
  struct stat here {
  }, there{};
  return fd_ >= 0 && fstat(fd_, &here) == 0 && stat(path_.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

absl::Status SpanFile::Write(std::string_view line) {
  if (!IsAtItsPath()) CKV_RETURN_IF_ERROR(Reopen());
  if (bytes_ > 0 && bytes_ + line.size() > bytes_max_) CKV_RETURN_IF_ERROR(Rotate());
  if (unfinished_) CKV_RETURN_IF_ERROR(Append("\n"));
  return Append(line);
}

absl::Status SpanFile::Rotate() {
  const std::string before = path_ + ".1";
  if (std::rename(path_.c_str(), before.c_str()) != 0)
    return absl::UnavailableError(absl::StrFormat("%s: %s", before, std::strerror(errno)));
  return Reopen();
}

absl::Status SpanFile::Append(std::string_view text) {
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t count = write(fd_, left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      absl::Status failed =
          absl::UnavailableError(absl::StrFormat("%s: %s", path_, std::strerror(errno)));
      // Half a line would swallow the next one.
      if (left.size() < text.size() && ftruncate(fd_, static_cast<off_t>(bytes_)) != 0)
        unfinished_ = true;
      return failed;
    }
    left.remove_prefix(static_cast<size_t>(count));
  }
  bytes_ += text.size();
  unfinished_ = false;
  return absl::OkStatus();
}

}  // namespace ckv
