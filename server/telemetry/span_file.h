// A file of lines, and the one before it.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// One thread at a time. No other process may write to the file meanwhile: it is locked (flock).
class SpanFile {
 public:
  // Opens a regular file, and appends to what it has. A line that a process before left unfinished
  // is ended. A file that would grow beyond `bytes_max` becomes `path`.1, in place of the one
  // before, and a new one begins. So both take at most twice as many bytes.
  //   InvalidArgument     it cannot be opened, is no regular file, or another process writes to it;
  //                       says which.
  static absl::StatusOr<std::unique_ptr<SpanFile>> Open(const std::string& path,
                                                        uint64_t bytes_max);
  ~SpanFile();
  SpanFile(const SpanFile&) = delete;
  SpanFile& operator=(const SpanFile&) = delete;

  // Appends the line, which ends with a newline, or leaves the file as it was. If the file was
  // renamed or removed, a new one begins.
  //   Unavailable         the disk took not all of it; says why.
  //   InvalidArgument     as Open.
  absl::Status Write(std::string_view line);

 private:
  SpanFile(std::string path, uint64_t bytes_max) : path_(std::move(path)), bytes_max_(bytes_max) {}
  absl::Status Reopen();
  bool IsAtItsPath() const;
  absl::Status Rotate();
  absl::Status Append(std::string_view text);

  const std::string path_;
  const uint64_t bytes_max_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  bool unfinished_ = false;  // it ends inside a line
};

}  // namespace ckv
