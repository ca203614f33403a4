// A file's bytes, mapped for reading.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace ckv {

// Immutable, so any thread may read it. Whoever shortens the file while it is mapped ends the
// process (SIGBUS).
class MappedFile {
 public:
  //   NotFound            no such file.
  //   InvalidArgument     it cannot be read, or is no regular file; says why. Both name the path.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the memory of the whole pages inside `part` back to the system; reading them again reads
  // the file again. Of what is no part of bytes() nothing.
  void DropPages(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const std::span<const std::byte> bytes_;
};

}  // namespace ckv
