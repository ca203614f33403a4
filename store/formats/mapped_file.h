// A file's bytes, mapped for reading.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace ckv {

// Immutable, so any thread may read it. If someone shortens the file while it is mapped, reading it
// ends the process (SIGBUS).
class MappedFile {
 public:
  // Maps the file at `path`. Messages name the path.
  //   NotFound            there is no such file.
  //   InvalidArgument     it cannot be read or is not a regular file; the message says why.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the memory of the whole pages inside `part` back to the system; reading them again reads
  // the file again. Does nothing if `part` is not in bytes().
  void DropPages(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const std::span<const std::byte> bytes_;
};

}  // namespace ckv
