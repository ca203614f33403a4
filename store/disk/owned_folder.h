// A folder that one process owns at a time: its lock, and the format of what is in it.
//
//   LOCK      locked by the process that uses the folder; holds that process's id as text
//   FORMAT    "ckv KIND VERSION"

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/disk/file_system.h"

namespace ckv {

// The kind of a folder: its purpose and format.
struct FolderKind {
  std::string_view name;    // "chunk folder": in FORMAT and in messages
  std::string_view owners;  // "holders": who use it, for messages
  uint32_t version = 1;     // the format that this build writes and reads
};

// The lock on a folder. The system releases it when the process ends, however it ends. Movable.
class OwnedFolder {
 public:
  // Opens the folder, creating it if it is missing, and locks it until the object is destroyed. The
  // parent must exist. In addition to the errors below, Open may return those of FileSystem.
  //   FailedPrecondition  another process uses the folder (the message has its id). Or a later
  //                       version of ckv made it, or it is neither empty nor of this kind.
  //   PermissionDenied    its LOCK cannot be created or opened.
  static absl::StatusOr<OwnedFolder> Open(FileSystem& files, const std::string& path,
                                          const FolderKind& kind);
  OwnedFolder(OwnedFolder&&) noexcept = default;
  OwnedFolder& operator=(OwnedFolder&&) = delete;

  // Checks that the folder is still at the path with which it was opened. Open files keep working
  // in a removed folder, but a restart would not find them. One system call; any thread may call
  // it.
  //   Unavailable         the folder was removed or moved away, or another one has its name.
  absl::Status CheckThere() const;

 private:
  OwnedFolder(std::unique_ptr<FileLock> lock, std::string path)
      : lock_(std::move(lock)), path_(std::move(path)) {}
  std::unique_ptr<FileLock> lock_;
  std::string path_;
};

}  // namespace ckv
