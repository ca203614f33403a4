// In this order: members and their leases, changes of corpora, reads, and what members announce.
// A call takes the lock, ends the leases that have expired, and works on the tables. A call that
// changes corpora or keys waits for its turn, checks, adds a pending change and its number, and
// gives up the lock. Then it commits the change (directory_changes.h).

#include "server/directory/directory_state.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
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

// A tenant sees its own corpora and the shared ones (I6).
bool IsVisible(const Corpus& corpus, std::string_view tenant) {
  return corpus.tenant.empty() || corpus.tenant == tenant;
}

// The tenants whose corpora `tenant` sees, in the order in which names are looked up: its own
// first.
std::array<std::string_view, 2> OwnersFor(std::string_view tenant) { return {tenant, ""}; }

// Returns why there is no corpus of this name.
absl::Status NoCorpus(const CorpusRebuild& reports, std::string_view name,
                      std::string_view tenant) {
  for (const std::string_view owner : OwnersFor(tenant)) {
    const std::optional<UnprovenCorpus> unproven = reports.Find(CorpusKey(owner, name));
    if (!unproven) continue;
    return absl::UnavailableError(absl::StrFormat(
        "corpus \"%s\" is not proven to be whole: holders report %d of its %d chunks%s", name,
        unproven->chunk_count - unproven->missing_count, unproven->chunk_count,
        unproven->conflict ? ", and contradict each other" : ""));
  }
  return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", name));
}

// Returns Unavailable if holders report a part of a later version that this folder assigned, or,
// for a corpus rebuilt from reports, any folder.
absl::Status CheckLatest(const CorpusRebuild& reports, const ChangeNumbers& numbers,
                         const Corpus& corpus) {
  if (reports.count() == 0) return absl::OkStatus();
  // A corpus that was rebuilt from reports yields to any later report.
  const bool is_rebuilt = numbers.IsInGap(corpus.version);
  const uint64_t latest = reports.HighestOf(KeyOf(corpus), is_rebuilt ? 0 : numbers.folder_id());
  if (latest <= corpus.version) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "corpus \"%s\": version %d was published after version %d, which is all that this directory "
      "has of it: start the holders that have it, or load it with --replace, or drop it",
      corpus.name, latest, corpus.version));
}

}  // namespace

absl::StatusOr<LeaseGrant> DirectoryState::Register(const Member& member, Duration ttl,
                                                    Instant deadline, bool reports_parts,
                                                    bool continues) {
  CKV_RETURN_IF_ERROR(ValidateMember(member));
  const DirectoryOptions& options = tables_.options;
  Lease lease;
  lease.id = RandomDirectoryId();
  lease.member = member;
  lease.member.is_draining = false;  // Members sets it
  lease.ttl = ttl == Duration(0) ? options.lease_ttl
                                 : std::clamp(ttl, options.lease_ttl_min, options.lease_ttl_max);
  {
    absl::MutexLock lock(&tables_.mu);
    CKV_RETURN_IF_ERROR(tables_.lead.Check());
    tables_.epochs.NotePrevious(member.epoch);
  }
  // A disk that fails must not keep members out. An epoch beyond the durable block is still not
  // given again: the next incarnation starts at the wall clock, and above what its members had.
  const bool is_durable = changes_.ReserveEpochs(deadline).ok();
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  if (tables_.leases.Find(lease.id) != nullptr) return absl::InternalError("lease ids repeat");
  const Lease* earlier = tables_.leases.FindMember(member.id);
  const bool is_same = continues && earlier != nullptr && earlier->member == member;
  CKV_RETURN_IF_ERROR(MakeRoomFor(member, is_same));
  if (changes_.IsDurable() && is_durable && !is_same && !tables_.epochs.IsLeft())
    return absl::UnavailableError("all epochs of a block were taken meanwhile: register again");
  if (!is_same) lease.member.epoch = tables_.epochs.Assign();
  lease.expires = options.clock->Now() + lease.ttl;
  const LeaseGrant grant = {.lease_id = lease.id,
                            .epoch = lease.member.epoch,
                            .ttl = lease.ttl,
                            .directory_incarnation = tables_.incarnation,
                            .folder_id = tables_.numbers.folder_id()};
  tables_.AddLease(std::move(lease), /*is_replacing=*/is_same);
  if (member.role != MemberRole::kHolder) return grant;
  tables_.returning.NoteRegistered(member.id);
  if (reports_parts && grant.folder_id != 0) tables_.returning.NoteReporting(member.id);
  return grant;
}

absl::Status DirectoryState::MakeRoomFor(const Member& member, bool is_replaced) {
  const Lease* earlier = tables_.leases.FindMember(member.id);
  const size_t member_count = tables_.leases.all().size();
  if (earlier == nullptr) {
    if (member_count < kMemberCountMax) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrFormat("%d members, limit reached", member_count));
  }
  if (const std::string& held_by = earlier->member.control_address;
      held_by != member.control_address) {
    return WithLeaseEnd(
        absl::AlreadyExistsError(absl::StrFormat(
            "name '%s' is held by %s; choose another with --name", member.id.name, held_by)),
        earlier->expires - tables_.options.clock->Now());
  }
  tables_.EndLease(earlier->id, is_replaced);
  return absl::OkStatus();
}

absl::StatusOr<LeaseRenewal> DirectoryState::KeepAlive(uint64_t lease_id,
                                                       const MemberHealth* health) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  Lease* lease = tables_.leases.Find(lease_id);
  if (lease == nullptr) {
    return WithDirectoryIncarnation(absl::NotFoundError("no such lease: register again"),
                                    tables_.incarnation);
  }
  LeaseTable::Renew(tables_.options.clock->Now(), health, *lease);
  return LeaseRenewal{lease->ttl, lease->placed_change_count, lease->copy_order_count};
}

absl::Status DirectoryState::Deregister(uint64_t lease_id) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  const Lease* lease = tables_.leases.Find(lease_id);
  if (lease == nullptr) return absl::NotFoundError("no such lease");
  tables_.leases.NoteEnded(lease->member, tables_.options.clock->Now(), /*ran_out=*/false);
  tables_.EndLease(lease_id);
  return absl::OkStatus();
}

std::vector<Member> DirectoryState::Members() {
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  std::vector<Member> members = tables_.leases.Members();
  for (Member& member : members) member.is_draining = tables_.draining.contains(member.id);
  return members;
}

std::vector<std::string> DirectoryState::AddressesOf(std::span<const HolderId> members) {
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  std::vector<std::string> addresses;
  for (const HolderId& member : members) {
    if (const Lease* lease = tables_.leases.FindMember(member))
      addresses.push_back(lease->member.control_address);
  }
  return addresses;
}

absl::Status DirectoryState::CheckLeads() {
  absl::MutexLock lock(&tables_.mu);
  return tables_.lead.Check();
}

std::vector<EndedLease> DirectoryState::Ended() {
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  return tables_.leases.Ended(tables_.options.clock->Now());
}

void DirectoryState::Expire() {
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
}

std::vector<HolderId> DirectoryState::MissingHolders() {
  absl::MutexLock lock(&tables_.mu);
  return tables_.returning.List(tables_.corpora);
}

absl::Status DirectoryState::CheckReturned() {
  absl::MutexLock lock(&tables_.mu);
  return tables_.returning.Check(tables_.options.clock->Now());
}

absl::StatusOr<TenantKey> DirectoryState::TenantKeyOf(std::string_view tenant, bool make,
                                                      Instant deadline) {
  CKV_RETURN_IF_ERROR(ValidateName("tenant", tenant));
  // A key that is lost at a restart would leave chunks that no prompt finds any more.
  if (tenant.empty() || !changes_.IsDurable()) return TenantKey();
  deadline = tables_.LatestOf(deadline);
  const auto pending = std::make_shared<PendingChange>();
  auto change = std::make_shared<DirectoryChange>();
  {
    absl::MutexLock lock(&tables_.mu);
    if (const auto known = tables_.keys.Find(tenant)) return *known;
    if (!make) return TenantKey();
    const CorpusKey key(tenant, "");
    CKV_RETURN_IF_ERROR(tables_.AwaitTurn(key, deadline));
    CKV_RETURN_IF_ERROR(tables_.lead.Check());
    if (const auto known = tables_.keys.Find(tenant)) return *known;
    if (tables_.keys.size() >= TenantKeys::kTenantKeyCountMax) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%d tenants have keys", tables_.keys.size()));
    }
    change->kind = ChangeKind::kTenantKey;
    change->tenant = std::string(tenant);
    change->key = RandomTenantKey();
    pending->number = tables_.numbers.last() + 1;  // it has none
    tables_.AddPending(key, pending);
  }
  CKV_RETURN_IF_ERROR(changes_.Commit(change, pending.get(), deadline));
  return change->key;
}

absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryState::Get(std::string_view name,
                                                                  std::string_view tenant,
                                                                  bool for_calls) {
  std::shared_ptr<const Corpus> corpus;
  std::vector<ReplicaTable::Leased> leased;
  CoverageView::Holders holders;
  {
    absl::MutexLock lock(&tables_.mu);
    tables_.Expire();
    for (const std::string_view owner : OwnersFor(tenant)) {
      if (corpus == nullptr) corpus = tables_.corpora.Find(CorpusKey(owner, name));
    }
    if (corpus == nullptr) return NoCorpus(tables_.reports, name, tenant);
    CKV_RETURN_IF_ERROR(CheckLatest(tables_.reports, tables_.numbers, *corpus));
    leased = tables_.corpora.replicas().LeasedOf(*corpus);
    if (for_calls) holders = tables_.LackingHolders(*corpus);
  }
  if (leased.empty() && holders.lacking.empty()) return corpus;
  // Copied without the lock: a corpus may have a million chunks, and leases are renewed meanwhile.
  auto reported = std::make_shared<Corpus>(*corpus);
  for (ReplicaTable::Leased& one : leased) {
    reported->chunks[one.ordinal].set_leased(std::move(one.members));
  }
  if (holders.lacking.empty()) return reported;
  for (ChunkPlacement& chunk : reported->chunks) LeaveOutLacking(holders, chunk);
  return reported;
}

std::vector<std::shared_ptr<const Corpus>> DirectoryState::List(std::string_view tenant) {
  absl::MutexLock lock(&tables_.mu);
  std::vector<std::shared_ptr<const Corpus>> list;
  for (const auto& [key, corpus] : tables_.corpora.all()) {
    if (IsVisible(*corpus, tenant)) list.push_back(corpus);
  }
  return list;
}

std::vector<LocatedChunk> DirectoryState::Locate(const ChunkId& id, std::string_view tenant,
                                                 bool for_calls) {
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  std::vector<LocatedChunk> visible;
  for (const ChunkPlace& place : tables_.corpora.PlacesOf(id)) {
    if (!IsVisible(*place.corpus, tenant)) continue;
    LocatedChunk located{place.corpus, place.ordinal, place.corpus->chunks[place.ordinal]};
    located.chunk.set_leased(tables_.corpora.replicas().LeasedOf(*place.corpus, located.chunk));
    if (for_calls) {
      const CoverageView::Holders holders = tables_.LackingHolders(*place.corpus);
      if (!holders.lacking.empty()) LeaveOutLacking(holders, located.chunk);
    }
    visible.push_back(std::move(located));
  }
  return visible;
}

PromptChunks DirectoryState::FindPrompt(std::span<const uint64_t> heads,
                                        const std::optional<ChunkId>& model,
                                        std::string_view tenant) {
  PromptSearch search(tenant, model);
  while (!heads.empty()) {
    const auto slice = heads.first(std::min(heads.size(), kHeadSliceCount));
    heads = heads.subspan(slice.size());
    absl::MutexLock lock(&tables_.mu);
    search.Look(tables_.corpora.heads(), slice);
  }
  return std::move(search).Finish();
}

std::vector<uint32_t> DirectoryState::CountReferences(std::span<const ChunkId> ids,
                                                      std::string_view holder) {
  std::vector<uint32_t> counts;
  counts.reserve(ids.size());
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  for (const ChunkId& id : ids) {
    // A reported chunk may be all that is left of a corpus.
    counts.push_back(tables_.corpora.CountReferences(id, holder) + tables_.reports.CountOf(id));
  }
  return counts;
}

absl::StatusOr<std::vector<bool>> DirectoryState::AnnounceReplicas(uint64_t lease_id,
                                                                   std::string_view tenant,
                                                                   std::span<const ChunkId> ids) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, ids.size()));
  // A drained holder serves less and less.
  if (tables_.draining.contains(lease->member.id)) return std::vector<bool>(ids.size(), false);
  std::vector<bool> accepted;
  accepted.reserve(ids.size());
  CorporaByKey changed;
  for (const ChunkId& id : ids) {
    const auto outcome = tables_.corpora.Announce(lease_id, lease->member.id, tenant, id, changed);
    accepted.push_back(outcome != ReplicaTable::Outcome::kRefused);
  }
  tables_.watches.ReportReplicasChanged(changed);
  return accepted;
}

absl::Status DirectoryState::WithdrawReplicas(uint64_t lease_id,
                                              std::optional<std::string_view> tenant,
                                              std::span<const ChunkId> ids) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_RETURN_IF_ERROR(tables_.leases.FindHolder(lease_id, ids.size()).status());
  tables_.watches.ReportReplicasChanged(tables_.corpora.Withdraw(lease_id, tenant, ids));
  return absl::OkStatus();
}

DirectoryState::Counts DirectoryState::counts() {
  absl::MutexLock lock(&tables_.mu);
  return {.corpus_count = tables_.corpora.all().size(),
          .placement_count = tables_.corpora.chunk_count(),
          .watcher_count = tables_.watches.count(),
          .replica_count = tables_.corpora.replicas().replica_count(),
          .draining_count = tables_.draining.size()};
}

}  // namespace ckv
