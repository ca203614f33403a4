// The file system calls of the store, as an interface so that tests can inject faults.
//
// Every call of this file may return these errors. Messages contain the path and the system's text.
//   ResourceExhausted   no space, a quota, too many open files, or no memory (ENOMEM).
//   NotFound            no such file or folder.
//   AlreadyExists       the name is taken.
//   PermissionDenied    this process lacks the permission, or the file system is read-only.
//   Unavailable         the device failed (EIO), or any other system error.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/disk/file_identity.h"

namespace ckv {

// An open file; closed when destroyed. Several threads may use it at once if their ranges do not
// overlap.
class File {
 public:
  virtual ~File() = default;

  // Writes all bytes. After an error the file may contain any part of them.
  virtual absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Sets the length of the file; new bytes are zero.
  virtual absl::Status Resize(uint64_t bytes) = 0;
  // Starts to write these bytes to the device in the background, so that Sync has less to do.
  virtual void StartWriteback(uint64_t offset, uint64_t bytes) = 0;
  // Returns OK when all written bytes are on the device. After an error discard the file, because
  // the state of its bytes is unknown. A second call proves nothing: the kernel has dropped the
  // bytes that it could not write.
  virtual absl::Status Sync() = 0;
  // Reads exactly bytes.size() bytes.
  //   DataLoss            the file ends before the range does.
  virtual absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual absl::StatusOr<uint64_t> Size() = 0;
  // Passes the bytes [offset, offset + bytes) to `take`, block by block in order, from the device
  // and not through the page cache. A block is valid during the call of `take`. An error from
  // `take` ends the reading and is returned.
  //   Unimplemented       use ReadAt instead; `take` was not called.
  //   DataLoss            the file ends before the range does.
  using Take = absl::FunctionRef<absl::Status(std::span<const std::byte> block)>;
  virtual absl::Status Stream(uint64_t /*offset*/, uint64_t /*bytes*/, Take /*take*/) {
    return absl::UnimplementedError("no direct reads of this file");
  }
  // Drops the system's copy of the file in memory, so that the next read is from the device. Pages
  // that other processes map, or that are not yet on the device, stay.
  virtual void DropCached() {}
};

// The exclusive use of a file. It ends when this is destroyed, and when the process ends, however
// it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // The file's identity; unknown if the file system has none.
  virtual FileIdentity identity() const { return {}; }
};

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Returns the file system of this machine, which is never destroyed.
  static FileSystem* Real();

  // Creates a new, empty file.
  //   AlreadyExists       a file of this name exists.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) = 0;
  // Opens an existing file, to read and to write.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) = 0;
  // Renames the file atomically; a file at `to` is replaced.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Creates the folder, whose parent must exist. Returns OK if the folder exists already.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Returns OK when the names of the folder's entries are on the device.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Returns the folder's entries in no order, without "." and "..".
  virtual absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) = 0;
  // Takes the lock of a file, which is created if it is missing, and writes `text` over its start
  // if the disk allows it. By default a lock of this machine's file system (flock).
  //   FailedPrecondition  another process, or another object of this one, has the lock.
  //   PermissionDenied    the file cannot be created or opened.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path,
                                                         std::string_view text);
};

// Reads a whole small file.
//   FailedPrecondition  it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadSmallFile(FileSystem& files, const std::string& path,
                                          size_t bytes_max);
// Writes folder/name completely or not at all, even if the power fails. Writes `temporary`, which
// must be on the same file system, syncs it, renames it, and syncs the folder.
absl::Status WriteSmallFile(FileSystem& files, const std::string& temporary,
                            const std::string& folder, const std::string& name,
                            std::string_view bytes);

}  // namespace ckv
