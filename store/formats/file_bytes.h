// A file's bytes, read into memory whole or part by part. It is never mapped, so a file that is
// shortened is an error and not a SIGBUS.

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
  kWhole,  // at once
  kParts,  // Need and Copy read what they name
};

// Immutable but for Need. Keeps the file open.
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

  // Addresses for the whole file. With kParts only parts that were needed have their bytes; the
  // others take no memory.
  std::span<const std::byte> bytes() const { return {base_, size_}; }
  bool Has(std::span<const std::byte> part) const;
  // Reads `part`, which is of bytes(), into its place. One thread at a time.
  //   InvalidArgument     it cannot be read, or CheckUnchanged.
  absl::Status Need(std::span<const std::byte> part) const;
  // Reads `part`, which is of bytes(), into `out`. Thread-safe; errors as Need.
  absl::Status Copy(std::span<const std::byte> part, std::byte* out) const;
  // Looks whether the file is as it was when it was opened, by its size and times of change.
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

// As Annotate, unless the message names `path` already.
absl::Status AnnotateOnce(const absl::Status& status, const std::string& path);

}  // namespace ckv
