// The health of a daemon and, if it is the directory, of its fleet: gathers facts and derives
// findings.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/health/findings.h"
#include "server/directory/durable_directory.h"
#include "server/health/elbow_meter.h"
#include "server/health/member_probes.h"
#include "server/holder/holder.h"
#include "server/upkeep/placement_keeper.h"

namespace ckv {

// The parts of a daemon whose state is reported. A missing part is null. All must outlive the
// DaemonHealth.
struct HealthParts {
  std::string name;        // the name of this process
  std::string address;     // the address that it listens at
  std::string store_path;  // the folder of its holder
  Clock* clock = Clock::Real();
  uint64_t copy_bytes_per_second = 0;  // how fast its holder makes copies
  DurableDirectory* directory = nullptr;
  Holder* holder = nullptr;
  const PlacementKeeper* placement = nullptr;
  const Requester* requester = nullptr;
  MakeMemberProbe make_probe = {};                      // for a directory: makes its probes
  std::function<bool()> hears_directory = {};           // for a requester
  std::function<std::string()> directory_address = {};  // as peers reach the directory
};

// Thread-safe, except Tick.
class DaemonHealth {
 public:
  explicit DaemonHealth(HealthParts parts);

  // Returns the current health of a role. Accesses the disk, which may hang.
  MemberHealth OfRole(MemberRole role) const;
  // Returns the health of a role as of the last Tick, or the current health before the first Tick.
  // The thread that renews a lease uses it: a hung disk must not end the lease, because a holder
  // answers from memory.
  MemberHealth LastOfRole(MemberRole role) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the facts of the whole fleet if this process is the directory, else only those of this
  // process.
  FleetFacts Facts() const;

  // Returns the findings of the last Tick, for status pages: without the names of tenants' corpora.
  std::shared_ptr<const std::vector<Finding>> Findings() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the load of the holder in the window that the last Tick ended.
  HolderLoad LastLoad() const ABSL_LOCKS_EXCLUDED(mu_);

  // Once per kPeriod, updates the findings and, on a directory, probes the members. Call often,
  // from one thread.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr Duration kPeriod = std::chrono::seconds(1);

 private:
  const HealthParts parts_;
  std::unique_ptr<MemberProbes> probes_;  // null unless this process is the directory
  Instant next_{};                        // used by Tick
  ElbowMeter meter_;                      // used by Tick
  mutable absl::Mutex mu_;
  std::shared_ptr<const std::vector<Finding>> findings_ ABSL_GUARDED_BY(mu_);
  std::map<MemberRole, MemberHealth> reported_ ABSL_GUARDED_BY(mu_);
  HolderLoad load_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
