#include "server/health/daemon_health.h"

#include <utility>

#include "proto/base/version.h"
#include "server/health/member_health.h"
#include "store/disk/disk_space.h"

namespace ckv {

DaemonHealth::DaemonHealth(HealthParts parts)
    : parts_(std::move(parts)), findings_(std::make_shared<const std::vector<Finding>>()) {
  if (parts_.directory != nullptr && parts_.make_probe) {
    probes_ =
        std::make_unique<MemberProbes>(&parts_.directory->state(), parts_.clock, parts_.make_probe);
  }
}

MemberHealth DaemonHealth::OfRole(MemberRole role) const {
  if (role == MemberRole::kRequester) return HealthOf(*parts_.requester, parts_.clock->Now());
  MemberHealth health = HealthOf(*parts_.holder, parts_.store_path);
  health.copy_bytes_per_second = parts_.copy_bytes_per_second;
  return health;
}

MemberHealth DaemonHealth::LastOfRole(MemberRole role) const {
  {
    absl::MutexLock lock(&mu_);
    if (const auto reported = reported_.find(role); reported != reported_.end()) {
      MemberHealth health = reported->second;
      health.wall_clock_ms = WallClockMilliseconds();
      return health;
    }
  }
  return OfRole(role);
}

FleetFacts DaemonHealth::Facts() const {
  FleetFacts facts;
  const std::string address = parts_.directory_address ? parts_.directory_address() : "";
  if (parts_.directory != nullptr) {
    facts = parts_.directory->state().health().Facts();
    facts.replication = parts_.directory->state().replication().Facts();
    DirectoryFacts& directory = *facts.directory;
    directory.address = address;
    directory.path = parts_.directory->found().path;
    const auto leader = parts_.directory->state().changes().leader();
    directory.is_shared = leader.has_value();
    directory.has_no_leader = leader && !leader->is_this && leader->address.empty();
    if (!directory.is_shared) directory.disk = DiskSpaceOf(directory.path);
    directory.build = BuildText(std::string(Version()), std::string(Commit()));
    if (ChangeLog* log = parts_.directory->log(); log != nullptr) log->Look();
    directory.refusal = parts_.directory->Refusal();
    return facts;
  }
  if (parts_.holder != nullptr) {
    MemberFacts self =
        SelfFacts(parts_.name, MemberRole::kHolder, parts_.address, OfRole(MemberRole::kHolder),
                  /*refuses=*/!parts_.holder->lease().LiveAt(parts_.clock->Now()));
    if (parts_.placement != nullptr) {
      // Whether others have what it lacks is the directory's to say.
      const PlacementKeeper::Stats placed = parts_.placement->stats();
      self.placed_count = placed.placed_count;
      self.lacking_count = placed.lacking_count;
    }
    facts.members.push_back(std::move(self));
  }
  if (parts_.requester != nullptr) {
    facts.members.push_back(SelfFacts(parts_.name, MemberRole::kRequester, parts_.address,
                                      OfRole(MemberRole::kRequester), /*refuses=*/false));
    RequesterFacts& requester = facts.requester.emplace();
    requester.address = parts_.address;
    requester.directory_address = address;
    requester.hears_directory = !parts_.hears_directory || parts_.hears_directory();
  }
  return facts;
}

std::shared_ptr<const std::vector<Finding>> DaemonHealth::Findings() const {
  absl::MutexLock lock(&mu_);
  return findings_;
}

HolderLoad DaemonHealth::LastLoad() const {
  absl::MutexLock lock(&mu_);
  return load_;
}

void DaemonHealth::Tick() {
  const Instant now = parts_.clock->Now();
  if (now < next_) return;
  next_ = now + kPeriod;
  if (probes_ != nullptr) probes_->Tick();
  auto findings = std::make_shared<const std::vector<Finding>>(JudgeFleet(WithoutTenants(Facts())));
  std::map<MemberRole, MemberHealth> reported;
  HolderLoad load;
  if (parts_.holder != nullptr) {
    MemberHealth& health = reported[MemberRole::kHolder] = OfRole(MemberRole::kHolder);
    load = meter_.Read(parts_.holder->batch_sums(), now, parts_.holder->TakeSampledChunks());
    health.is_past_elbow = load.is_past_elbow;
    health.hot = load.hot;
  }
  if (parts_.requester != nullptr)
    reported[MemberRole::kRequester] = OfRole(MemberRole::kRequester);
  absl::MutexLock lock(&mu_);
  findings_ = std::move(findings);
  reported_ = std::move(reported);
  load_ = std::move(load);
}

}  // namespace ckv
