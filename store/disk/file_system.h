// What the store asks of a file system, so that tests can put faults between.
//
// Errors of every call, with the path and the system's own words:
//   ResourceExhausted   no space, or a quota.
//   NotFound            no such file or folder.
//   AlreadyExists
//   PermissionDenied
//   Unavailable         the device fails (EIO), and whatever else the system says.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// An open file; closed when destroyed. Thread-safe as far as ranges do not overlap.
class File {
 public:
  virtual ~File() = default;

  // All of it or an error, after which any part of it may be there.
  virtual absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Makes the file this long; what is new is zeros.
  virtual absl::Status Resize(uint64_t bytes) = 0;
  // Begins to bring written bytes to the device, so that Sync has less to do. Promises nothing.
  virtual void StartWriteback(uint64_t offset, uint64_t bytes) = 0;
  // Written bytes are on the device. After an error nothing is known of any of them, and a second
  // call proves nothing: the kernel has forgotten what it could not write. The file is poisoned.
  virtual absl::Status Sync() = 0;
  //   DataLoss            the file ends before.
  virtual absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual absl::StatusOr<uint64_t> Size() = 0;
  // Gives `take` the bytes [offset, offset + bytes), piece by piece in order, from the device and
  // past the system's memory; a piece is valid during the call.
  //   Unimplemented       not of this file; nothing was taken. Else as ReadAt, and what `take`
  //   says.
  using Take = absl::FunctionRef<absl::Status(std::span<const std::byte> piece)>;
  virtual absl::Status Stream(uint64_t /*offset*/, uint64_t /*bytes*/, Take /*take*/) {
    return absl::UnimplementedError("no direct reads of this file");
  }
  // What is remembered of the file in memory is forgotten, so that the next read is of the device.
  // Promises nothing: what others map, or what is not yet on the device, stays.
  virtual void DropCached() {}
};

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // That of this machine.
  static FileSystem* Real();

  // A new, empty file.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) = 0;
  // Replaces what is at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // OK where it is there already; its parent must be.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // The folder's names are on the device.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // In no order; without "." and "..".
  virtual absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) = 0;
};

// A whole small file, at most `bytes_max`.
//   FailedPrecondition  it is longer.
absl::StatusOr<std::string> ReadSmallFile(FileSystem& files, const std::string& path,
                                          size_t bytes_max);
// Whole or not at all, also when the power fails: written to `temporary` first, on the same file
// system, synced, renamed to folder/name, the folder synced.
absl::Status WriteSmallFile(FileSystem& files, const std::string& temporary,
                            const std::string& folder, const std::string& name,
                            std::string_view bytes);

}  // namespace ckv
