// The calls the store makes to a file system, as an interface so that tests can put faults between.
//
// Every call of this file may return these errors. Messages have the path and the system's words.
//   ResourceExhausted   no space, a quota, too many open files, or no memory (ENOMEM).
//   NotFound            no such file or folder.
//   AlreadyExists       the name is taken.
//   PermissionDenied    this process may not, or the file system is read-only.
//   Unavailable         the device fails (EIO), or the system says anything else.

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

// An open file; closed when destroyed. Several threads may call it if their ranges do not overlap.
class File {
 public:
  virtual ~File() = default;

  // Writes all bytes. After an error any part of them may be in the file.
  virtual absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Makes the file this long; new bytes are zero.
  virtual absl::Status Resize(uint64_t bytes) = 0;
  // Asks the system to begin writing these bytes to the device, so that Sync has less to do.
  virtual void StartWriteback(uint64_t offset, uint64_t bytes) = 0;
  // Returns OK when all written bytes are on the device. After an error give the file up, because
  // nothing is known of its bytes. A second call proves nothing: the kernel has forgotten the bytes
  // it could not write.
  virtual absl::Status Sync() = 0;
  // Reads exactly bytes.size() bytes.
  //   DataLoss            the file ends before.
  virtual absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual absl::StatusOr<uint64_t> Size() = 0;
  // Gives `take` the bytes [offset, offset + bytes), block by block in order, from the device and
  // past the page cache. A block is valid during the call of `take`, whose error ends the reading
  // and is returned.
  //   Unimplemented       ReadAt is to be used instead; nothing was taken.
  //   DataLoss            the file ends before.
  using Take = absl::FunctionRef<absl::Status(std::span<const std::byte> block)>;
  virtual absl::Status Stream(uint64_t /*offset*/, uint64_t /*bytes*/, Take /*take*/) {
    return absl::UnimplementedError("no direct reads of this file");
  }
  // Asks the system to forget its copy of the file in memory, so that the next read is from the
  // device. Pages that others map, or that are not yet on the device, stay.
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
  // The file system of this machine. It lives for ever.
  static FileSystem* Real();

  // Makes a new, empty file.
  //   AlreadyExists       there is one of this name.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) = 0;
  // Opens a file that is there, to read it and to write on.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) = 0;
  // Gives the file another name at once; a file at `to` is replaced.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Makes the folder, whose parent must exist. Returns OK if it is there already.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Returns OK when the folder's names are on the device.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Returns the folder's entries in no order, without "." and "..".
  virtual absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) = 0;
};

// Reads a whole small file.
//   FailedPrecondition  it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadSmallFile(FileSystem& files, const std::string& path,
                                          size_t bytes_max);
// Writes folder/name whole or not at all, even if the power fails. It writes `temporary`, on the
// same file system, syncs it, renames it, and syncs the folder.
absl::Status WriteSmallFile(FileSystem& files, const std::string& temporary,
                            const std::string& folder, const std::string& name,
                            std::string_view bytes);

}  // namespace ckv
