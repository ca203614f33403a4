#include "store/disk/file_identity.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace ckv {
namespace {

FileIdentity IdentityIn(const struct stat& status) {
  return {.device = static_cast<uint64_t>(status.st_dev),
          .inode = static_cast<uint64_t>(status.st_ino)};
}

}  // namespace

FileIdentity IdentityOf(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 ? IdentityIn(status) : FileIdentity();
}

FileIdentity IdentityAt(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 ? IdentityIn(status) : FileIdentity();
}

absl::Status CheckNamed(const std::string& path, const FileIdentity& file) {
  if (file.inode == 0) return absl::OkStatus();
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0) {
    if (IdentityIn(status) == file) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(path, " was replaced by another file"));
  }
  // With any other error the file may be where it was. ESTALE is a network file system's ENOENT.
  if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, " was removed or moved away"));
}

}  // namespace ckv
