// An output file at a path that an operator chose: a new file, an existing one, a link, a pipe or a
// device.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// A regular file is written next to its path and renamed once it is complete, with the mode of the
// file it replaces. A killed process leaves the old file, or none. A symbolic link stays: its
// target is replaced or created. A pipe or a character device also stays: Finish writes all bytes
// to it, and until then they are in $TMPDIR. Movable; used by one thread at a time.
class OutputFile {
 public:
  // Checks, before the result is computed, whether it can be written to `path`. Changes nothing
  // there.
  //   Create's errors.
  static absl::Status Check(const std::string& path);
  // Returns whether `path` is a pipe or a character device. A path derived from it, for example
  // with a suffix, would not be one.
  static bool IsStream(const std::string& path);
  // Opens the output. If `path` is a pipe without a reader, blocks until one opens it.
  //   FailedPrecondition  `path` is a folder, a block device or a socket, or links to a file that
  //                       this process has open.
  //   ResourceExhausted   the disk or the quota is full.
  //   Unavailable         the system refuses for another reason, which the message names.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  // Bytes that are never written read as 0.
  //   ResourceExhausted, Unavailable   as Create.
  absl::Status Write(uint64_t offset_bytes, std::span<const std::byte> bytes);
  // Puts the bytes at `path`. After OK they are complete there and, if that is a file, durable.
  //   ResourceExhausted, Unavailable   as Create; a file at `path` is unchanged. But if only the
  //                       last sync of the folder failed, the new file is at `path`, and a power
  //                       failure may undo it.
  absl::Status Finish() &&;

 private:
  OutputFile() = default;
  absl::Status OpenBeside(std::optional<mode_t> mode);
  absl::Status OpenStream();
  absl::Status CopyToStream();
  absl::Status Failed() const;

  std::string path_;       // with its links resolved
  std::string temporary_;  // its name; empty while it has none
  int fd_ = -1;
  int stream_fd_ = -1;  // the pipe or device, if it is one
};

// Writes `text` as the file's whole content. Returns OutputFile's errors.
absl::Status WriteOutput(const std::string& path, std::string_view text);

}  // namespace ckv
