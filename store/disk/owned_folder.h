// A folder that one process owns at a time: its lock, and the format of what is in it.
//
//   LOCK      locked by the process that uses the folder; holds that process's id as text
//   FORMAT    "ckv KIND VERSION"

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/disk/file_identity.h"
#include "store/disk/file_system.h"

namespace ckv {

// The use of a folder.
struct FolderKind {
  std::string_view name;    // "chunk folder": in FORMAT and in messages
  std::string_view owners;  // "holders": who need one each
  uint32_t version = 1;     // the format that this build writes and reads
};

// The lock of a folder. It goes with the process, however that ends. Movable.
class OwnedFolder {
 public:
  // Makes the folder or takes it over, and locks it until this is destroyed. The parent must exist.
  // Beside the errors below, it may return those of FileSystem.
  //   FailedPrecondition  another process uses the folder, and the message tells its id. Or a
  //                       later version of ckv made it, or it is neither empty nor of this kind.
  //   PermissionDenied    its LOCK cannot be made.
  static absl::StatusOr<OwnedFolder> Open(FileSystem& files, const std::string& path,
                                          const FolderKind& kind);
  OwnedFolder(OwnedFolder&& other) noexcept;
  OwnedFolder& operator=(OwnedFolder&&) = delete;
  ~OwnedFolder();

  // Checks that the folder still has the path with which it was opened. Open files keep working in
  // a removed folder, but a restart would not find them. One system call; any thread may call it.
  //   Unavailable         the folder was removed or moved away, or another one has its name.
  absl::Status CheckThere() const;

 private:
  OwnedFolder(int lock_fd, std::string path)
      : lock_fd_(lock_fd), path_(std::move(path)), lock_(IdentityOf(lock_fd)) {}
  int lock_fd_;
  std::string path_;
  FileIdentity lock_;
};

}  // namespace ckv
