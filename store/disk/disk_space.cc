#include "store/disk/disk_space.h"

#include <sys/statvfs.h>
#include <unistd.h>

namespace ckv {
namespace {

bool LookAt(const std::string& path, struct statvfs& found) {
  return !path.empty() && statvfs(path.c_str(), &found) == 0;
}

// Part of the space is reserved for root.
uint64_t FreeBytesOf(const struct statvfs& found) {
  return uint64_t{geteuid() == 0 ? found.f_bfree : found.f_bavail} * found.f_frsize;
}

}  // namespace

DiskSpace DiskSpaceOf(const std::string& path) {
  struct statvfs found = {};
  if (!LookAt(path, found)) return {};
  return {.free_bytes = FreeBytesOf(found),
          .total_bytes = uint64_t{found.f_blocks} * found.f_frsize,
          .read_only = (found.f_flag & ST_RDONLY) != 0};
}

std::optional<bool> HasSpaceForFile(const std::string& path, uint64_t bytes) {
  struct statvfs found = {};
  if (!LookAt(path, found)) return std::nullopt;
  if (found.f_blocks > 0 && FreeBytesOf(found) < bytes) return false;
  // File systems without a fixed number of inodes report 0 of 0.
  const uint64_t free_files = geteuid() == 0 ? found.f_ffree : found.f_favail;
  return found.f_files == 0 || free_files > 0;
}

}  // namespace ckv
