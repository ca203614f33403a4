#include "store/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"

namespace ckv {

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const auto refused = [&path](const char* why) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, why));
  };
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
  }
  if (fd < 0) return refused(std::strerror(errno));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat about;
  if (fstat(fd, &about) != 0) return refused(std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return refused("not a regular file");
  std::span<const std::byte> bytes;
  if (about.st_size > 0) {
    const size_t file_bytes = static_cast<size_t>(about.st_size);
    void* mapped = mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) return refused(std::strerror(errno));
    bytes = {static_cast<const std::byte*>(mapped), file_bytes};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::DropPages(std::span<const std::byte> part) const {
  if (part.empty() || part.data() < bytes_.data() ||
      part.data() + part.size() > bytes_.data() + bytes_.size()) {
    return;
  }
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The mapping begins with a page.
  const auto begin = static_cast<size_t>(part.data() - bytes_.data());
  const size_t first = (begin + page_bytes - 1) / page_bytes * page_bytes;
  const size_t last = (begin + part.size()) / page_bytes * page_bytes;
  if (first >= last) return;
  // Advice: where the system does not take it, the pages stay until they are wanted elsewhere.
  madvise(const_cast<std::byte*>(bytes_.data()) + first, last - first, MADV_DONTNEED);
}

}  // namespace ckv
