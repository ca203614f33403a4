// The bytes of a file, read into memory at once or in parts. The file is never mapped, so
// truncating it is an error and not a SIGBUS.

#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

enum class FileReading : uint8_t {
  kWhole,  // Open reads the file at once
  kParts,  // Need and Copy read single parts
};

// Immutable except for Need. Keeps the file open.
class FileBytes {
 public:
  // Opens the file at `path`. Messages name the path.
  //   NotFound            there is no such file.
  //   InvalidArgument     it cannot be read, is not a regular file or has more than `bytes_max`;
  //                       the message says why. Or it changed while it was read.
  static absl::StatusOr<std::shared_ptr<const FileBytes>> Open(const std::string& path,
                                                               FileReading reading,
                                                               uint64_t bytes_max = UINT64_MAX);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // The address range of the whole file. With kParts, only the parts that Need has read have their
  // bytes; the others take no memory.
  std::span<const std::byte> bytes() const { return {base_, size_}; }
  bool Has(std::span<const std::byte> part) const;
  // Reads `part`, a part of bytes(), into its place. One thread at a time.
  //   InvalidArgument     it cannot be read, or the file changed.
  absl::Status Need(std::span<const std::byte> part) const;
  // Reads `part`, a part of bytes(), into `out`. Thread-safe; errors as Need.
  absl::Status Copy(std::span<const std::byte> part, std::byte* out) const;
  // Checks that the file is unchanged since it was opened, by its size, mtime and ctime.
  //   InvalidArgument     it changed.
  absl::Status CheckUnchanged() const;

 private:
  FileBytes(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Start(FileReading reading, uint64_t bytes_max);
  absl::Status ReadAt(uint64_t offset, size_t count, std::byte* out) const;
  absl::Status Changed() const;

  const std::string path_;
  const int fd_;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  timespec modified_ = {}, changed_ = {};
};

// As Annotate, but does nothing if the message already names `path`.
absl::Status AnnotateOnce(const absl::Status& status, const std::string& path);

}  // namespace ckv
