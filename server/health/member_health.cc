#include "server/health/member_health.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "proto/base/version.h"
#include "store/disk/disk_space.h"
#include "transport/wire.h"

namespace ckv {
namespace {

// Returns the number of this process's open descriptors, as listed in /proc. Returns `most` if none
// is left to open the list with, and 0 if it cannot be read.
uint64_t OpenFileCount(uint64_t most) {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return errno == EMFILE ? most : 0;
  uint64_t count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return count - std::min<uint64_t>(count, 1);  // without the one for the list
}

uint64_t OpenFileCountMax() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return limit.rlim_cur;
}

}  // namespace

MemberHealth ProcessHealth() {
  MemberHealth health;
  health.open_file_count_max = OpenFileCountMax();
  health.open_file_count = OpenFileCount(health.open_file_count_max);
  health.wall_clock_ms = WallClockMilliseconds();
  health.build = BuildText(std::string(Version()), std::string(Commit()));
  health.wire_version_min = kWireVersionMin;
  health.wire_version_max = kWireVersion;
  return health;
}

MemberHealth HealthOf(const Holder& holder, const std::string& store_path) {
  MemberHealth health = ProcessHealth();
  const HolderStats stats = holder.stats();
  health.chunk_count = stats.table.chunk_count;
  health.used_bytes = stats.table.used_bytes;
  health.capacity_bytes = stats.table.capacity_bytes;
  health.is_durable = !store_path.empty();
  health.disk = DiskSpaceOf(store_path);
  health.fault = stats.store_errors.fault;
  health.fault_text = stats.store_errors.fault_text;
  health.unreadable_count = stats.store_errors.unreadable_count;
  health.repair_pending_count = stats.scrub.repair_pending_count;
  return health;
}

MemberHealth HealthOf(const Requester& requester, Instant now) {
  MemberHealth health = ProcessHealth();
  for (const HolderView& holder : requester.KnownHolders()) {
    if (!holder.unreached_at || !holder.unreached_since) continue;
    // No one retries a holder that no one calls, so an old failure is no evidence. Neither is a
    // failure that the holder's restart explains.
    if (now - *holder.unreached_at > kUnreachedFor ||
        *holder.unreached_at - *holder.unreached_since < kUnreachedMin) {
      continue;
    }
    if (health.unreached.size() == MemberHealth::kUnreachedCountMax) break;
    health.unreached.push_back(holder.member.id.name);
  }
  return health;
}

MemberFacts SelfFacts(const std::string& name, MemberRole role, const std::string& address,
                      MemberHealth health, bool refuses) {
  MemberFacts self;
  self.name = name;
  self.role = role;
  self.address = address;
  self.health = std::move(health);
  self.refuses = refuses;
  self.sole_is_known = false;
  return self;
}

}  // namespace ckv
