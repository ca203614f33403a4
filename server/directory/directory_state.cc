#include "server/directory/directory_state.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kAddressBytesMax = 256;

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

// Random, so that nobody renews or ends another's lease by counting.
uint64_t RandomLeaseId() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

// A tenant sees its own corpora and the shared ones (I6).
bool Visible(const Corpus& corpus, std::string_view tenant) {
  return corpus.tenant.empty() || corpus.tenant == tenant;
}

absl::Status NoCorpus(std::string_view name) {
  return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", name));
}

}  // namespace

DirectoryState::DirectoryState(const DirectoryOptions& options)
    : options_(options),
      replicas_(options.replica_count_max),
      last_epoch_(options.first_epoch),
      last_version_(options.first_epoch) {}

DirectoryState::~DirectoryState() { CKV_CHECK(watchers_.empty()); }

DirectoryState::Watcher::~Watcher() { state_->Forget(this); }

absl::StatusOr<LeaseGrant> DirectoryState::Register(const Member& member, Duration ttl) {
  CKV_RETURN_IF_ERROR(ValidateMember(member));
  const uint64_t lease_id = RandomLeaseId();
  absl::MutexLock lock(&mu_);
  ExpireLocked();
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
  Lease lease;
  lease.member = member;
  lease.member.epoch = {++last_epoch_};
  lease.ttl = ttl == Duration(0) ? options_.lease_ttl
                                 : std::clamp(ttl, options_.lease_ttl_min, options_.lease_ttl_max);
  lease.expires = options_.clock->Now() + lease.ttl;
  next_expiry_ = std::min(next_expiry_, lease.expires);
  lease_by_member_[member.id] = lease_id;
  Tell({.kind = DirectoryEvent::Kind::kMemberUp, .member = lease.member, .corpus = nullptr});
  const LeaseGrant grant = {.lease_id = lease_id, .epoch = lease.member.epoch, .ttl = lease.ttl};
  leases_.emplace(lease_id, std::move(lease));
  return grant;
}

absl::StatusOr<Duration> DirectoryState::KeepAlive(uint64_t lease_id) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return absl::NotFoundError("no such lease: register again");
  lease->second.expires = options_.clock->Now() + lease->second.ttl;
  return lease->second.ttl;
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

DirectoryState::Counts DirectoryState::counts() {
  absl::MutexLock lock(&mu_);
  return {.corpus_count = corpora_.size(),
          .placement_count = placement_count_,
          .watcher_count = watchers_.size(),
          .replica_count = replicas_.replica_count()};
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
  return absl::FailedPreconditionError(
      absl::StrFormat("'%s' is no holder: nobody asks it for rows", lease->second.member.id.name));
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

ReplicaTable::Places DirectoryState::PlacesOf(const ChunkId& id) const {
  const auto places = places_.find(id);
  if (places == places_.end()) return {};
  return places->second;
}

absl::StatusOr<uint64_t> DirectoryState::Publish(Corpus corpus, bool replace,
                                                 uint64_t expected_version, Orphans* orphans) {
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    if (corpus.chunks[i].leased.empty()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus: chunk %d: leased members are told, not published: clear `leased`", i));
  }
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CorpusKey key(corpus.tenant, corpus.name);
  const auto current = corpora_.find(key);
  const bool exists = current != corpora_.end();
  const uint64_t version = exists ? current->second->version : 0;
  if (expected_version != 0 && expected_version != version) {
    return absl::FailedPreconditionError(
        absl::StrFormat("corpus \"%s\": version %d expected, %d is current", corpus.name,
                        expected_version, version));
  }
  if (exists && !replace) {
    return absl::AlreadyExistsError(
        absl::StrFormat("corpus \"%s\" exists in version %d", corpus.name, version));
  }
  if (!exists && corpora_.size() >= options_.corpus_count_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d corpora, limit reached", corpora_.size()));
  }
  const uint64_t freed = exists ? current->second->chunks.size() : 0;
  if (placement_count_ - freed + corpus.chunks.size() > options_.placement_count_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "corpus \"%s\": %d chunks, %d of %d are free", corpus.name, corpus.chunks.size(),
        options_.placement_count_max - (placement_count_ - freed), options_.placement_count_max));
  }
  const std::shared_ptr<const Corpus> replaced = exists ? current->second : nullptr;
  if (exists) RemovePlaces(*replaced);
  corpus.version = ++last_version_;
  const auto published = std::make_shared<const Corpus>(std::move(corpus));
  AddPlaces(published);
  if (exists && orphans != nullptr) *orphans = OrphansOf(*replaced);
  if (exists) RemoveReplicas(*replaced);
  corpora_.insert_or_assign(std::move(key), published);
  Tell({.kind = DirectoryEvent::Kind::kCorpusPublished, .member = {}, .corpus = published});
  return published->version;
}

void DirectoryState::AddPlaces(const std::shared_ptr<const Corpus>& corpus) {
  for (uint32_t i = 0; i < corpus->chunks.size(); ++i) {
    places_[corpus->chunks[i].id].push_back({.corpus = corpus, .ordinal = i});
  }
  placement_count_ += corpus->chunks.size();
  replicas_.AddCorpus(*corpus);
}

void DirectoryState::RemovePlaces(const Corpus& corpus) {
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const auto places = places_.find(chunk.id);
    if (places == places_.end()) continue;  // a chunk that the corpus names twice
    std::erase_if(places->second,
                  [&](const ChunkPlace& place) { return place.corpus.get() == &corpus; });
    if (places->second.empty()) places_.erase(places);
  }
  placement_count_ -= corpus.chunks.size();
  replicas_.RemoveCorpus(corpus);
}

void DirectoryState::RemoveReplicas(const Corpus& gone) {
  for (const ChunkPlacement& chunk : gone.chunks) {
    if (!places_.contains(chunk.id)) replicas_.RemoveChunk(chunk.id);
  }
}

DirectoryState::Orphans DirectoryState::OrphansOf(const Corpus& gone) const {
  Orphans orphans;
  for (const ChunkPlacement& chunk : gone.chunks) {
    ChunkPlacement orphan = chunk;
    if (const auto places = places_.find(chunk.id); places != places_.end()) {
      for (const ChunkPlace& place : places->second) {
        const std::vector<HolderId>& wanted = place.corpus->chunks[place.ordinal].holders;
        std::erase_if(orphan.holders, [&](const HolderId& holder) {
          return std::find(wanted.begin(), wanted.end(), holder) != wanted.end();
        });
      }
    } else {
      orphan.leased = replicas_.LeasedOf(gone, chunk);
    }
    if (!orphan.holders.empty() || !orphan.leased.empty()) orphans.push_back(std::move(orphan));
  }
  return orphans;
}

// The tenant's own first, then the shared one of that name.
std::shared_ptr<const Corpus> DirectoryState::FindLocked(std::string_view name,
                                                         std::string_view tenant) {
  for (const std::string_view owner : {tenant, std::string_view()}) {
    const auto found = corpora_.find(CorpusKey(owner, name));
    if (found != corpora_.end()) return found->second;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryState::Get(std::string_view name,
                                                                  std::string_view tenant) {
  std::shared_ptr<const Corpus> corpus;
  std::vector<ReplicaTable::Leased> leased;
  {
    absl::MutexLock lock(&mu_);
    ExpireLocked();
    corpus = FindLocked(name, tenant);
    if (corpus == nullptr) return NoCorpus(name);
    leased = replicas_.LeasedOf(*corpus);
  }
  if (leased.empty()) return corpus;
  // Copied without the lock: a corpus may have a million chunks, and leases are renewed meanwhile.
  auto told = std::make_shared<Corpus>(*corpus);
  for (ReplicaTable::Leased& one : leased) {
    told->chunks[one.ordinal].leased = std::move(one.members);
  }
  return told;
}

std::vector<std::shared_ptr<const Corpus>> DirectoryState::List(std::string_view tenant) {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const Corpus>> list;
  for (const auto& [key, corpus] : corpora_) {
    if (Visible(*corpus, tenant)) list.push_back(corpus);
  }
  return list;
}

// Only its own: a tenant that may read a shared corpus may not take it from the others. The answer
// is the one for a corpus that is not there.
absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryState::Drop(std::string_view name,
                                                                   std::string_view tenant,
                                                                   Orphans* orphans) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  const auto found = corpora_.find(CorpusKey(tenant, name));
  if (found == corpora_.end()) return NoCorpus(name);
  const std::shared_ptr<const Corpus> corpus = found->second;
  RemovePlaces(*corpus);
  if (orphans != nullptr) *orphans = OrphansOf(*corpus);
  RemoveReplicas(*corpus);
  corpora_.erase(found);
  Tell({.kind = DirectoryEvent::Kind::kCorpusDropped, .member = {}, .corpus = corpus});
  return corpus;
}

std::vector<LocatedChunk> DirectoryState::Locate(const ChunkId& id, std::string_view tenant) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  std::vector<LocatedChunk> visible;
  for (const ChunkPlace& place : PlacesOf(id)) {
    if (!Visible(*place.corpus, tenant)) continue;
    LocatedChunk located{place.corpus, place.ordinal, place.corpus->chunks[place.ordinal]};
    located.chunk.leased = replicas_.LeasedOf(*place.corpus, located.chunk);
    visible.push_back(std::move(located));
  }
  return visible;
}

bool DirectoryState::IsPlacedOn(const ChunkPlace& place, std::string_view holder) const {
  const ChunkPlacement& chunk = place.corpus->chunks[place.ordinal];
  const auto is_holder = [holder](const HolderId& id) { return id.name == holder; };
  if (std::any_of(chunk.holders.begin(), chunk.holders.end(), is_holder)) return true;
  const std::vector<HolderId> leased = replicas_.LeasedOf(*place.corpus, chunk);
  return std::any_of(leased.begin(), leased.end(), is_holder);
}

std::vector<uint32_t> DirectoryState::CountReferences(std::span<const ChunkId> ids,
                                                      std::string_view holder) {
  std::vector<uint32_t> counts;
  counts.reserve(ids.size());
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  for (const ChunkId& id : ids) {
    uint32_t count = 0;
    for (const ChunkPlace& place : PlacesOf(id))
      count += holder.empty() || IsPlacedOn(place, holder) ? 1 : 0;
    counts.push_back(count);
  }
  return counts;
}

absl::StatusOr<std::unique_ptr<DirectoryState::Watcher>> DirectoryState::Watch(
    std::string_view tenant, bool all_tenants) {
  // Made before the lock is taken: its destructor takes the lock.
  std::unique_ptr<Watcher> watcher(new Watcher(this, tenant, all_tenants));
  absl::MutexLock lock(&mu_);
  if (watchers_.size() >= options_.watcher_count_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d watchers, limit reached", watchers_.size()));
  }
  ExpireLocked();
  for (const auto& [id, lease_id] : lease_by_member_) {
    watcher->events_.push_back({.kind = DirectoryEvent::Kind::kMemberUp,
                                .member = leases_.find(lease_id)->second.member,
                                .corpus = nullptr});
  }
  for (const auto& [key, corpus] : corpora_) {
    if (!watcher->Sees(*corpus)) continue;
    watcher->events_.push_back(
        {.kind = DirectoryEvent::Kind::kCorpusPublished, .member = {}, .corpus = corpus});
  }
  watcher->events_.push_back({});  // kSynced
  watcher->snapshot_left_ = watcher->events_.size();
  watchers_.push_back(watcher.get());
  return watcher;
}

absl::StatusOr<std::optional<DirectoryEvent>> DirectoryState::Next(Watcher& watcher,
                                                                   Instant deadline) {
  CKV_CHECK(watcher.state_ == this);
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  options_.clock->Await(mu_, absl::Condition(&watcher, &Watcher::Ready), deadline);
  if (watcher.fell_behind_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("fell %d events behind: watch anew", kWatchBacklogMax));
  }
  std::optional<DirectoryEvent> event;
  if (watcher.events_.empty()) return event;
  event = std::move(watcher.events_.front());
  watcher.events_.pop_front();
  if (watcher.snapshot_left_ != 0) --watcher.snapshot_left_;
  return event;
}

void DirectoryState::Tell(const DirectoryEvent& event) {
  for (Watcher* watcher : watchers_) {
    if (watcher->fell_behind_) continue;
    if (event.corpus != nullptr && !watcher->Sees(*event.corpus)) continue;
    if (watcher->events_.size() - watcher->snapshot_left_ >= kWatchBacklogMax) {
      watcher->fell_behind_ = true;
      watcher->events_.clear();
      continue;
    }
    watcher->events_.push_back(event);
  }
}

void DirectoryState::Forget(Watcher* watcher) {
  absl::MutexLock lock(&mu_);
  std::erase(watchers_, watcher);
}

}  // namespace ckv
