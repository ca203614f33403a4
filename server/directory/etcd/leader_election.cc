// The thread's loop: Campaign, and then either Serve until the lease may have ended, or AwaitChange
// of the leader's key. An error of etcd is a pause and another campaign. No leader is
// reported that may be gone, and a leader whose renewals fail leads only until its lease may end.

#include "server/directory/etcd/leader_election.h"

#include <algorithm>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// After an error of etcd.
constexpr Duration kPause = std::chrono::milliseconds(200);

}  // namespace

LeaderElection::LeaderElection(Options options, EtcdClient* client, Clock* clock, LeaderSink* sink)
    : options_(std::move(options)), client_(*client), clock_(*clock), sink_(*sink), thread_([this] {
        Run();
      }) {}

LeaderElection::~LeaderElection() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  client_.StopWatches();
  thread_.join();
}

void LeaderElection::Run() {
  bool is_reported = false;
  while (!is_ending()) {
    const auto fence = Campaign();
    if (!fence.ok()) {
      if (!std::exchange(is_reported, true))
        Log().warn("directory: no election: {}; trying again", fence.status().ToString());
      if (!Rest(kPause)) break;
      continue;
    }
    is_reported = false;
    if (*fence != 0) {
      Serve(*fence);
    } else {
      AwaitChange(revision_ + 1);
    }
  }
  EndLease();
}

absl::StatusOr<int64_t> LeaderElection::Campaign() {
  const Instant begin = clock_.Now();
  const Instant deadline = begin + options_.ttl;
  Instant asked = begin;
  absl::StatusOr<Duration> left = absl::NotFoundError("no lease yet");
  if (lease_ != 0) left = client_.RenewLease(lease_, deadline);
  if (absl::IsNotFound(left.status())) {
    asked = clock_.Now();
    CKV_ASSIGN_OR_RETURN(lease_, client_.GrantLease(options_.ttl, deadline));
    left = options_.ttl;
  }
  if (!left.ok()) return left.status();
  EtcdTransaction claim;
  claim.conditions = {
      {.of = EtcdCondition::Of::kCreateRevision, .key = options_.key, .revision = 0, .value = ""}};
  claim.writes = {
      {.keys = EtcdKeys::One(options_.key), .value = options_.address, .lease = lease_}};
  claim.reads_if_refused = {EtcdKeys::One(options_.key)};
  CKV_ASSIGN_OR_RETURN(const EtcdOutcome outcome, client_.Commit(claim, deadline));
  revision_ = outcome.revision;
  int64_t fence = outcome.applied ? outcome.revision : 0;
  if (!outcome.applied && outcome.read.size() == 1) {
    // An earlier try was applied, but its answer was lost.
    if (outcome.read[0].lease == lease_) fence = outcome.read[0].create_revision;
    if (fence == 0) sink_.SeeLeader(outcome.read[0].value);
  }
  if (fence != 0) {
    const Duration sure = *left - *left / 10;
    leads_until_ns_.store((asked + sure).ns, std::memory_order_release);
  }
  return fence;
}

void LeaderElection::Serve(int64_t fence) {
  if (!Leads()) return;  // the claim took as long as the lease: claim again
  Log().info("directory: this one leads (etcd revision {})", fence);
  const absl::Status ready = sink_.Lead(fence, *this);
  if (!ready.ok()) {
    Log().warn("directory: it gives the lead up: {}", ready.ToString());
    leads_until_ns_.store(0, std::memory_order_release);
    EndLease();
    lease_ = 0;
    (void)Rest(options_.ttl);
    return;
  }
  sink_.SeeLeader(options_.address);
  bool is_kept = true;
  while (is_kept && Leads() && Rest(options_.ttl / 3)) {
    const Instant asked = clock_.Now();
    const auto left = Renew(fence);
    if (left.ok()) {
      leads_until_ns_.store((asked + *left - *left / 10).ns, std::memory_order_release);
    } else if (absl::IsNotFound(left.status())) {
      is_kept = false;
    } else {
      Log().warn("directory: the leader's lease is not renewed: {}", left.status().ToString());
    }
  }
  leads_until_ns_.store(0, std::memory_order_release);
  if (!is_ending()) Log().warn("directory: this one leads no more");
  sink_.Follow();
  if (!is_ending()) sink_.SeeLeader("");
}

absl::StatusOr<Duration> LeaderElection::Renew(int64_t fence) {
  auto left = client_.RenewLease(lease_, LeadsUntil());
  if (absl::IsNotFound(left.status())) lease_ = 0;
  CKV_RETURN_IF_ERROR(left.status());
  // The lease may outlast the key, if someone deleted that.
  int64_t made_at = 0;
  const auto read =
      client_.ReadKeys(EtcdKeys::One(options_.key), 0, LeadsUntil(), [&](const EtcdPair& pair) {
        made_at = pair.create_revision;
        return absl::OkStatus();
      });
  CKV_RETURN_IF_ERROR(read.status());
  if (made_at != fence) return absl::NotFoundError("the leader's key is gone");
  return left;
}

void LeaderElection::AwaitChange(int64_t revision) {
  const auto watched = client_.Watch(EtcdKeys::One(options_.key), revision,
                                     [&](std::span<const EtcdEvent> events, int64_t seen) {
                                       revision_ = std::max(revision_, seen);
                                       for (const EtcdEvent& event : events) {
                                         if (event.is_delete) {
                                           sink_.SeeLeader("");
                                           return false;
                                         }
                                         sink_.SeeLeader(event.pair.value);
                                       }
                                       return true;
                                     });
  // The campaign that follows looks at the key itself.
  if (!watched.ok() && !absl::IsCancelled(watched)) (void)Rest(kPause);
}

void LeaderElection::EndLease() {
  if (lease_ == 0) return;
  const absl::Status ended = client_.RevokeLease(lease_, clock_.Now() + options_.ttl);
  // Then it ends by itself.
  if (!ended.ok()) Log().debug("directory: {}", ended.ToString());
}

bool LeaderElection::Rest(Duration pause) {
  absl::MutexLock lock(&mu_);
  return !clock_.Await(mu_, absl::Condition(&ending_), clock_.Now() + pause);
}

}  // namespace ckv
