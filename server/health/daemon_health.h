// How a daemon and, if it is the directory, its fleet are: the facts that it gathers, and their
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
#include "server/health/member_probes.h"
#include "server/holder/holder.h"
#include "server/upkeep/placement_keeper.h"

namespace ckv {

// The parts of a daemon that tell of themselves. A missing part is null. All must outlive the
// DaemonHealth.
struct HealthParts {
  std::string name;        // the name of this process
  std::string address;     // the address that it listens at
  std::string store_path;  // the folder of its holder
  Clock* clock = Clock::Real();
  DurableDirectory* directory = nullptr;
  Holder* holder = nullptr;
  const PlacementKeeper* placement = nullptr;
  const Requester* requester = nullptr;
  MakeMemberProbe make_probe = {};                      // for a directory
  std::function<bool()> hears_directory = {};           // for a requester
  std::function<std::string()> directory_address = {};  // as peers reach it
};

// Thread-safe, except Tick.
class DaemonHealth {
 public:
  explicit DaemonHealth(HealthParts parts);

  // Returns what a role tells of itself now. It looks at the disk, which may hang.
  MemberHealth OfRole(MemberRole role) const;
  // The same as of the last Tick, if there was one: for who renews a lease. A disk that hangs must
  // not end it, because a holder answers from memory.
  MemberHealth LastOfRole(MemberRole role) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the facts of the whole fleet if this process is the directory, else its own.
  FleetFacts Facts() const;

  // Returns the findings of the last Tick, without the names of tenants' corpora: for pages.
  std::shared_ptr<const std::vector<Finding>> Findings() const ABSL_LOCKS_EXCLUDED(mu_);

  // Judges the facts anew once each kPeriod, and asks the members of a directory. Call it often,
  // from one thread.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr Duration kPeriod = std::chrono::seconds(1);

 private:
  const HealthParts parts_;
  std::unique_ptr<MemberProbes> probes_;  // null unless it is the directory
  Instant next_{};                        // used by Tick
  mutable absl::Mutex mu_;
  std::shared_ptr<const std::vector<Finding>> findings_ ABSL_GUARDED_BY(mu_);
  std::map<MemberRole, MemberHealth> told_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
