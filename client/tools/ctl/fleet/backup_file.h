// The file of an exported directory.
//
//   bytes  the file
//       8  "ckvdir1\n"
//          messages, each 4 bytes of length (little-endian) and that many bytes
//       4  0
//      32  SHA-256 of all bytes before

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/sha256.h"
#include "store/formats/output_file.h"

namespace ckv::ctl {

// The longest message: that of a gRPC message of a directory.
inline constexpr uint32_t kBackupMessageBytesMax = 64u << 20;

// Used by one thread.
class BackupWriter {
 public:
  // The file is readable by its owner only, because it has keys.
  //   Errors of OutputFile::Create.
  static absl::StatusOr<BackupWriter> Create(const std::string& path);
  absl::Status Add(std::string_view message);
  // Puts the whole file at its path. Without it nothing is there.
  absl::Status Finish() &&;
  uint64_t bytes() const { return bytes_; }

 private:
  explicit BackupWriter(OutputFile file) : file_(std::move(file)) {}
  absl::Status Append(std::string_view bytes);

  OutputFile file_;
  uint64_t bytes_ = 0;
  std::unique_ptr<Sha256> digest_ = std::make_unique<Sha256>();
};

// Reads the file twice: it checks the digest, and then calls `take` with each message. An error of
// `take` ends the reading and is returned.
//   NotFound, Unavailable    the file cannot be read.
//   DataLoss                 it is no such file, or is damaged or cut off: no message was taken.
absl::Status ReadBackup(const std::string& path,
                        absl::FunctionRef<absl::Status(std::string message)> take);

}  // namespace ckv::ctl
