#include "store/formats/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status Refuse(const std::string& path, const char* why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, why));
}

bool IsSame(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const FileBytes>> FileBytes::Open(const std::string& path,
                                                                 FileReading reading,
                                                                 uint64_t bytes_max) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
  }
  if (fd < 0) return Refuse(path, std::strerror(errno));
  std::shared_ptr<FileBytes> file(new FileBytes(path, fd));
  CKV_RETURN_IF_ERROR(file->Start(reading, bytes_max));
  return file;
}

absl::Status FileBytes::Start(FileReading reading, uint64_t bytes_max) {
  struct stat about;
  if (fstat(fd_, &about) != 0) return Refuse(path_, std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return Refuse(path_, "not a regular file");
  modified_ = about.st_mtim;
  changed_ = about.st_ctim;
  if (about.st_size == 0) return absl::OkStatus();
  const auto size = static_cast<size_t>(about.st_size);
  if (size > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, limit %d", path_, size, bytes_max));
  }
  // Addresses only: pages take memory once something is read into them.
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return Refuse(path_, std::strerror(errno));
  base_ = static_cast<std::byte*>(base);
  size_ = size;
  return reading == FileReading::kWhole ? Need(bytes()) : absl::OkStatus();
}

FileBytes::~FileBytes() {
  if (base_ != nullptr) munmap(base_, size_);
  close(fd_);
}

bool FileBytes::Has(std::span<const std::byte> part) const {
  return !part.empty() && part.data() >= base_ && part.data() + part.size() <= base_ + size_;
}

absl::Status FileBytes::Changed() const {
  struct stat about = {};
  fstat(fd_, &about);
  const bool is_as_long = static_cast<uint64_t>(about.st_size) == size_;
  const std::string how =
      is_as_long ? "" : absl::StrFormat(": it had %d bytes, and has %d now", size_, about.st_size);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: changed while it was read%s\n  run the command again when no process writes the file",
      path_, how));
}

absl::Status FileBytes::CheckUnchanged() const {
  struct stat about;
  if (fstat(fd_, &about) != 0) return Refuse(path_, std::strerror(errno));
  if (static_cast<uint64_t>(about.st_size) == size_ && IsSame(about.st_mtim, modified_) &&
      IsSame(about.st_ctim, changed_)) {
    return absl::OkStatus();
  }
  return Changed();
}

absl::Status FileBytes::ReadAt(uint64_t offset, size_t count, std::byte* out) const {
  while (count > 0) {
    const ssize_t got = pread(fd_, out, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Refuse(path_, std::strerror(errno));
    if (got == 0) return Changed();
    offset += static_cast<uint64_t>(got);
    out += got;
    count -= static_cast<size_t>(got);
  }
  return CheckUnchanged();
}

absl::Status FileBytes::Need(std::span<const std::byte> part) const {
  if (part.empty()) return absl::OkStatus();
  CKV_CHECK(Has(part));
  const auto offset = static_cast<size_t>(part.data() - base_);
  return ReadAt(offset, part.size(), base_ + offset);
}

absl::Status AnnotateOnce(const absl::Status& status, const std::string& path) {
  const std::string message(status.message());
  return message.compare(0, path.size(), path) == 0 ? status : Annotate(status, path);
}

absl::Status FileBytes::Copy(std::span<const std::byte> part, std::byte* out) const {
  if (part.empty()) return absl::OkStatus();
  CKV_CHECK(Has(part));
  return ReadAt(static_cast<uint64_t>(part.data() - base_), part.size(), out);
}

}  // namespace ckv
