#include "store/disk/disk_room.h"

#include <sys/statvfs.h>
#include <unistd.h>

namespace ckv {

DiskRoom DiskRoomOf(const std::string& path) {
  struct statvfs found = {};
  if (path.empty() || statvfs(path.c_str(), &found) != 0) return {};
  // A part is kept for root.
  const uint64_t free_blocks = geteuid() == 0 ? found.f_bfree : found.f_bavail;
  return {.free_bytes = free_blocks * found.f_frsize,
          .total_bytes = uint64_t{found.f_blocks} * found.f_frsize,
          .read_only = (found.f_flag & ST_RDONLY) != 0};
}

}  // namespace ckv
