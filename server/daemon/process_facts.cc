#include "server/daemon/process_facts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "proto/base/version.h"
#include "proto/host/control_groups.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {
namespace {

uint64_t MemlockBytesMax() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

}  // namespace

ProcessFacts ProcessFactsOf(const Config& config, const Clock& clock, Instant started) {
  ProcessFacts facts;
  facts.version = std::string(Version());
  facts.commit = std::string(Commit());
  facts.roles = config.role;
  facts.fabrics = config.fabrics;
  facts.host_identity = HostIdentity();
  facts.pid = static_cast<uint32_t>(getpid());
  const auto ago = std::chrono::duration_cast<std::chrono::milliseconds>(clock.Now() - started);
  facts.started_ago_ms = static_cast<uint64_t>(std::max<int64_t>(0, ago.count()));
  facts.wall_clock_ms = WallClockMilliseconds();
  facts.processor_count = UsableProcessors();
  if (config.spin_us > 0) {
    // A holder's dispatcher is one of its compute threads; a requester's streams have one loop.
    if (config.HasRole("holder")) facts.spinning_thread_count += config.compute_threads;
    if (config.HasRole("requester")) facts.spinning_thread_count += 1;
  }
  facts.memlock_bytes_max = MemlockBytesMax();
  facts.wire_version_min = kWireVersionMin;
  facts.wire_version_max = kWireVersion;
  const auto& fabrics = config.fabrics;
  if (config.HasRole("holder") && std::find(fabrics.begin(), fabrics.end(), "tcp") != fabrics.end())
    facts.data_listen = config.data_listen;
  if (config.HasRole("holder")) facts.store_path = config.store_path;
  facts.lease_ttl_ms = static_cast<uint64_t>(config.lease_ttl.count()) / 1'000'000;
  return facts;
}

}  // namespace ckv
