// Members under leases, and the copies that they announce.

#include <algorithm>
#include <random>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"

namespace ckv {
namespace {

constexpr size_t kAddressBytesMax = 256;
// 35 years of milliseconds, which fit into a Duration.
constexpr int64_t kClockAheadMax = int64_t{1} << 40;
// Epochs whose end is made durable at once: enough for a registration of every member. A start
// leaves the rest of a block unused, so a block is not longer. Epochs thus stay near the clock's
// milliseconds, which a directory that lost its disk starts with.
constexpr uint64_t kEpochBlock = kMemberCountMax;
// The next block is reserved when fewer are left.
constexpr uint64_t kEpochsLeftMin = kEpochBlock / 4;

absl::Status ValidateMember(const Member& member) {
  if (member.id.name.empty() || member.id.name.size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("member: a name of %d characters, 1 to %d",
                                                      member.id.name.size(), kCorpusNameBytesMax));
  }
  if (member.role != MemberRole::kHolder && member.role != MemberRole::kRequester) {
    return absl::InvalidArgumentError("member: no role");
  }
  if (member.control_address.empty() || member.control_address.size() > kAddressBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("member: an address of %d characters, 1 to %d",
                        member.control_address.size(), kAddressBytesMax));
  }
  return absl::OkStatus();
}

// Random and not 0: no one can renew or end another's lease by counting, and no two incarnations of
// a directory are the same.
uint64_t RandomId() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

}  // namespace

DirectoryState::DirectoryState(const DirectoryOptions& options)
    : options_(options),
      life_(RandomId()),
      rebuild_(options.placement_count_max, options.corpus_count_max),
      replicas_(options.replica_count_max),
      lacks_(options.lack_count_max),
      last_epoch_(options.first_epoch),
      last_version_(options.first_epoch) {}

DirectoryState::~DirectoryState() { CKV_CHECK(watchers_.empty()); }

absl::StatusOr<LeaseGrant> DirectoryState::Register(const Member& member, Duration ttl,
                                                    Instant deadline, bool reports_parts) {
  CKV_RETURN_IF_ERROR(ValidateMember(member));
  const uint64_t lease_id = RandomId();
  NoteEpoch(member.epoch);
  // A disk that fails must not keep members out. An epoch beyond the durable block is still not
  // given again: the next incarnation starts at the wall clock, and above what its members had.
  const bool durable = ReserveEpochs(deadline).ok();
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_ASSIGN_OR_RETURN(const LeaseGrant grant, RegisterLocked(member, ttl, lease_id, durable));
  const bool reports = reports_parts && member.role == MemberRole::kHolder && folder_id_ != 0;
  if (reports) reporting_.insert(member.id);
  return grant;
}

// A directory that lost its disk begins at the wall clock, which may be behind.
void DirectoryState::NoteEpoch(Epoch before) {
  absl::MutexLock lock(&mu_);
  saw_earlier_life_ |= before.value != 0 && before.value <= options_.first_epoch;
  if (before.value > last_epoch_ && before.value - last_epoch_ <= kNumberLeapMax)
    last_epoch_ = before.value;
}

absl::StatusOr<LeaseGrant> DirectoryState::RegisterLocked(const Member& member, Duration ttl,
                                                          uint64_t lease_id, bool durable) {
  const auto earlier = lease_by_member_.find(member.id);
  if (earlier == lease_by_member_.end() && leases_.size() >= kMemberCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d members, limit reached", leases_.size()));
  }
  if (leases_.contains(lease_id)) return absl::InternalError("lease ids repeat");
  if (earlier != lease_by_member_.end()) {
    const auto lease = leases_.find(earlier->second);
    if (const std::string& held_by = lease->second.member.control_address;
        held_by != member.control_address) {
      return WithLeaseEnd(
          absl::AlreadyExistsError(absl::StrFormat(
              "name '%s' is held by %s; choose another with --name", member.id.name, held_by)),
          lease->second.expires - options_.clock->Now());
    }
    EndLease(lease);
  }
  if (journal_ != nullptr && durable && last_epoch_ >= epoch_max_)
    return absl::UnavailableError("all epochs of a block were taken meanwhile: register again");
  Lease lease;
  lease.member = member;
  lease.member.epoch = {++last_epoch_};
  lease.ttl = ttl == Duration(0) ? options_.lease_ttl
                                 : std::clamp(ttl, options_.lease_ttl_min, options_.lease_ttl_max);
  lease.expires = options_.clock->Now() + lease.ttl;
  next_expiry_ = std::min(next_expiry_, lease.expires);
  lease_by_member_[member.id] = lease_id;
  if (member.role == MemberRole::kHolder) missing_.erase(member.id);
  Tell({.kind = DirectoryEvent::Kind::kMemberUp, .member = lease.member, .corpus = nullptr});
  const LeaseGrant grant = {.lease_id = lease_id,
                            .epoch = lease.member.epoch,
                            .ttl = lease.ttl,
                            .directory_life = life_,
                            .folder_id = folder_id_};
  leases_.emplace(lease_id, std::move(lease));
  return grant;
}

absl::Status DirectoryState::ReserveEpochs(Instant deadline) {
  if (journal_ == nullptr) return absl::OkStatus();
  const auto change = std::make_shared<DirectoryChange>();
  change->kind = ChangeKind::kEpochs;
  bool is_left = false;
  {
    absl::MutexLock lock(&mu_);
    if (epoch_max_ >= last_epoch_ + kEpochsLeftMin) return absl::OkStatus();
    is_left = epoch_max_ > last_epoch_;
    if (is_left && is_reserving_) return absl::OkStatus();
    if (!is_reserving_) change->epoch_max = last_epoch_ + kEpochBlock;
    is_reserving_ = true;
  }
  if (change->epoch_max != 0) {
    SubmitOrSettle(change);
  }
  absl::MutexLock lock(&mu_);
  const auto is_reserved = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !is_reserving_; };
  if (is_left) return absl::OkStatus();
  if (!options_.clock->Await(mu_, absl::Condition(&is_reserved), LatestOf(deadline)))
    return absl::DeadlineExceededError("the next epochs are not durable yet");
  return epoch_max_ > last_epoch_ ? absl::OkStatus() : reserved_;
}

void DirectoryState::SettleEpochs(uint64_t epoch_max, const absl::Status& status) {
  is_reserving_ = false;
  reserved_ = status;
  if (status.ok()) epoch_max_ = std::max(epoch_max_, epoch_max);
}

Instant DirectoryState::LatestOf(Instant deadline) const {
  return std::min(deadline, options_.clock->Now() + options_.change_timeout);
}

absl::StatusOr<LeaseRenewal> DirectoryState::KeepAlive(uint64_t lease_id,
                                                       const MemberHealth* health) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end())
    return WithDirectoryLife(absl::NotFoundError("no such lease: register again"), life_);
  lease->second.expires = options_.clock->Now() + lease->second.ttl;
  if (health != nullptr) {
    lease->second.health = *health;
    const auto ahead = static_cast<int64_t>(health->wall_clock_ms - WallClockMilliseconds());
    lease->second.clock_ahead = std::chrono::milliseconds(
        health->wall_clock_ms == 0 ? 0 : std::clamp(ahead, -kClockAheadMax, kClockAheadMax));
  }
  return LeaseRenewal{lease->second.ttl, lease->second.placed_change_count};
}

absl::Status DirectoryState::Deregister(uint64_t lease_id) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return absl::NotFoundError("no such lease");
  ended_.Add(lease->second.member, options_.clock->Now(), /*ran_out=*/false);
  EndLease(lease);
  return absl::OkStatus();
}

std::vector<Member> DirectoryState::Members() {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  std::vector<Member> members;
  members.reserve(leases_.size());
  for (const auto& [id, lease_id] : lease_by_member_) {
    members.push_back(leases_.find(lease_id)->second.member);
  }
  return members;
}

std::vector<EndedLease> DirectoryState::Ended() {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  const Instant now = options_.clock->Now();
  std::vector<EndedLease> gone;
  for (const EndedLease& lease : ended_.leases()) {
    if (now - lease.ended <= kEndedAgeMax && !lease_by_member_.contains(lease.member.id))
      gone.push_back(lease);
  }
  return gone;
}

void DirectoryState::Expire() {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
}

// In the order of names, so that a run replays (I8): lease ids are random.
void DirectoryState::ExpireLocked() {
  const Instant now = options_.clock->Now();
  if (now < next_expiry_) return;
  next_expiry_ = kInstantMax;
  for (auto it = lease_by_member_.begin(); it != lease_by_member_.end();) {
    const auto lease = leases_.find((it++)->second);
    if (now >= lease->second.expires) {
      ended_.Add(lease->second.member, now, /*ran_out=*/true);
      EndLease(lease);
    } else {
      next_expiry_ = std::min(next_expiry_, lease->second.expires);
    }
  }
}

void DirectoryState::EndLease(std::map<uint64_t, Lease>::iterator lease) {
  Tell({.kind = DirectoryEvent::Kind::kMemberGone,
        .member = lease->second.member,
        .corpus = nullptr});
  WithdrawLocked(lease->first, std::nullopt, replicas_.ChunksOf(lease->first));
  reporting_.erase(lease->second.member.id);
  lacks_.Forget(lease->second.member.id);
  lease_by_member_.erase(lease->second.member.id);
  leases_.erase(lease);
}

absl::StatusOr<const DirectoryState::Lease*> DirectoryState::FindHolderLease(
    uint64_t lease_id, size_t id_count) const {
  if (id_count > kReplicaIdCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d chunk ids, limit %d a call", id_count, kReplicaIdCountMax));
  }
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return absl::NotFoundError("no such lease: register again");
  if (lease->second.member.role == MemberRole::kHolder) return &lease->second;
  return absl::FailedPreconditionError(absl::StrFormat(
      "'%s' is no holder: requesters read rows from holders only", lease->second.member.id.name));
}

absl::StatusOr<std::vector<bool>> DirectoryState::AnnounceReplicas(uint64_t lease_id,
                                                                   std::string_view tenant,
                                                                   std::span<const ChunkId> ids) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, FindHolderLease(lease_id, ids.size()));
  std::vector<bool> accepted;
  accepted.reserve(ids.size());
  CorporaByKey changed;
  for (const ChunkId& id : ids) {
    const ReplicaTable::Places places = PlacesOf(id);
    const auto outcome = replicas_.Announce(lease_id, lease->member.id, tenant, id, places);
    accepted.push_back(outcome != ReplicaTable::Outcome::kRefused);
    if (outcome != ReplicaTable::Outcome::kAdded) continue;
    for (const ChunkPlace& place : places) {
      if (ReplicaTable::IsTold(*place.corpus, tenant))
        changed.try_emplace({place.corpus->tenant, place.corpus->name}, place.corpus);
    }
  }
  TellReplicasChanged(changed);
  return accepted;
}

absl::Status DirectoryState::WithdrawReplicas(uint64_t lease_id,
                                              std::optional<std::string_view> tenant,
                                              std::span<const ChunkId> ids) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_RETURN_IF_ERROR(FindHolderLease(lease_id, ids.size()).status());
  WithdrawLocked(lease_id, tenant, ids);
  return absl::OkStatus();
}

void DirectoryState::WithdrawLocked(uint64_t lease_id, std::optional<std::string_view> tenant,
                                    std::span<const ChunkId> ids) {
  CorporaByKey changed;
  for (const ChunkId& id : ids) {
    const ReplicaTable::Places places = PlacesOf(id);
    for (const std::string& told : replicas_.Withdraw(lease_id, tenant, id, places)) {
      for (const ChunkPlace& place : places) {
        if (ReplicaTable::IsTold(*place.corpus, told))
          changed.try_emplace({place.corpus->tenant, place.corpus->name}, place.corpus);
      }
    }
  }
  TellReplicasChanged(changed);
}

void DirectoryState::TellReplicasChanged(const CorporaByKey& corpora) {
  for (const auto& [key, corpus] : corpora) {
    Tell({.kind = DirectoryEvent::Kind::kReplicasChanged, .member = {}, .corpus = corpus});
  }
}

std::vector<HolderId> DirectoryState::MissingHolders() {
  absl::MutexLock lock(&mu_);
  for (auto it = missing_.begin(); it != missing_.end();)
    it = placed_on_.contains(*it) ? std::next(it) : missing_.erase(it);
  absl::btree_set<HolderId> all = missing_;
  all.insert(reporting_.begin(), reporting_.end());
  return {all.begin(), all.end()};
}

absl::Status DirectoryState::CheckReturned() {
  absl::MutexLock lock(&mu_);
  const Duration left = returning_until_ - options_.clock->Now();
  if (missing_.empty() || left <= Duration(0)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "the directory was just started, and holder %s is not back yet, the first of %d: all may be "
      "back in %d ms",
      missing_.begin()->name, missing_.size(), left / std::chrono::milliseconds(1)));
}

}  // namespace ckv
