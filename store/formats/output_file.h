// The file that an operator names for a result, whatever stands at that path already.

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

// A regular file is written beside its path and renamed when it is whole, with the mode of the file
// it replaces. A killed process leaves the old file, or none. A symbolic link stays: the file it
// leads to is replaced, or made. A pipe or a character device stays too: it gets the bytes when
// they are whole, and $TMPDIR has them until then. Movable; one thread at a time.
class OutputFile {
 public:
  // Says before the work whether its result can be written there. Changes nothing at `path`.
  //   as Create.
  static absl::Status Check(const std::string& path);
  // Whether `path` is a pipe or a character device: a name made from it would be another thing.
  static bool IsStream(const std::string& path);
  // Waits for the reader if `path` is a pipe that nobody reads.
  //   FailedPrecondition  `path` is a folder, a block device or a socket.
  //   Unavailable         the system refuses; says why.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  // Bytes that are never written read as 0.
  //   Unavailable         as Create.
  absl::Status Write(uint64_t offset_bytes, std::span<const std::byte> bytes);
  // The bytes are at `path` and, if that is a file, durable.
  //   Unavailable         as Create; a file at `path` is as it was. If only the last sync of the
  //                       folder failed, the new file is there, but may not outlast a power cut.
  absl::Status Finish() &&;

 private:
  OutputFile() = default;
  absl::Status OpenBeside(std::optional<mode_t> mode);
  absl::Status OpenStream();
  absl::Status CopyToStream();
  absl::Status Failed() const;

  std::string path_;       // after the links
  std::string temporary_;  // its name; empty while it has none
  int fd_ = -1;
  int stream_fd_ = -1;  // the pipe or device, if it is one
};

// `text` as the file's whole content; errors as of OutputFile.
absl::Status WriteOutput(const std::string& path, std::string_view text);

}  // namespace ckv
