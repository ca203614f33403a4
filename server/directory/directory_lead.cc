// DirectoryChanges of a directory that is one of several: mirroring the leader's changes, and
// beginning and ending to lead.

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "server/directory/directory_changes.h"

namespace ckv {

void DirectoryChanges::StartFollowing() {
  absl::MutexLock lock(&tables_.mu);
  is_durable_ = true;
  tables_.lead.Follow();
}

void DirectoryChanges::Mirror(const DirectoryChange& change) {
  absl::MutexLock lock(&tables_.mu);
  CKV_CHECK(tables_.lead.term() == 0);
  switch (change.kind) {
    case ChangeKind::kPublish: {
      const std::shared_ptr<const Corpus> here = tables_.corpora.Find(KeyOf(change));
      if (here != nullptr && here->version >= change.corpus->version) return;
      tables_.Apply(change, /*orphans=*/nullptr);
      tables_.numbers.Replay(change.corpus->version);
      break;
    }
    case ChangeKind::kDrop:
    case ChangeKind::kForget: {
      DirectoryChange drop = change;
      drop.kind = ChangeKind::kForget;
      if (change.kind == ChangeKind::kDrop) drop.removed_version = drop.version;
      if (tables_.corpora.Find(KeyOf(change)) == nullptr) drop.removed_version = 0;
      if (drop.removed_version == 0 &&
          tables_.dropped.Covers(drop.tenant, drop.name, drop.folder_id, drop.version)) {
        return;
      }
      tables_.Apply(drop, /*orphans=*/nullptr);
      tables_.numbers.Replay(drop.number);
      break;
    }
    case ChangeKind::kTenantKey:
      if (!tables_.keys.Find(change.tenant)) tables_.Apply(change, /*orphans=*/nullptr);
      break;
    case ChangeKind::kDrain:
      tables_.Apply(change, /*orphans=*/nullptr);
      break;
    case ChangeKind::kGap:
      tables_.numbers.ReplayGap(change.gap);
      break;
    case ChangeKind::kMember:
    case ChangeKind::kMemberGone:
      MirrorMember(change);
      break;
    default:
      tables_.epochs.Replay(change.epoch_max);
      tables_.numbers.NoteApplied(change.version);
      tables_.numbers.Replay(change.version);
  }
}

void DirectoryChanges::MirrorMember(const DirectoryChange& change) {
  const Lease* here = tables_.leases.FindMember(change.member.id);
  const Epoch epoch = change.member.epoch;
  if (change.kind == ChangeKind::kMemberGone) {
    const bool is_it = here != nullptr && (epoch.value == 0 || here->member.epoch == epoch);
    if (is_it) tables_.EndLease(here->id);
    return;
  }
  if (here != nullptr && here->member == change.member) return;
  if (here != nullptr) tables_.EndLease(here->id);
  Lease lease;
  lease.id = RandomDirectoryId();
  lease.member = change.member;
  lease.ttl =
      std::clamp(change.lease_ttl, tables_.options.lease_ttl_min, tables_.options.lease_ttl_max);
  lease.expires = kInstantMax;
  tables_.AddLease(std::move(lease));
}

void DirectoryChanges::MirrorOnly(const absl::btree_set<CorpusKey>& corpora,
                                  const absl::btree_set<HolderId>& members,
                                  const absl::btree_set<HolderId>& draining) {
  absl::MutexLock lock(&tables_.mu);
  CKV_CHECK(tables_.lead.term() == 0);
  std::vector<DirectoryChange> gone;
  for (const auto& [key, corpus] : tables_.corpora.all()) {
    if (corpora.contains(key)) continue;
    DirectoryChange& drop = gone.emplace_back();
    drop.kind = ChangeKind::kForget;
    drop.tenant = corpus->tenant;
    drop.name = corpus->name;
    drop.version = drop.removed_version = corpus->version;
    drop.folder_id = tables_.numbers.folder_id();
  }
  for (const HolderId& holder : tables_.draining) {
    if (draining.contains(holder)) continue;
    DirectoryChange& end = gone.emplace_back();
    end.kind = ChangeKind::kDrain;
    end.holder = holder.name;
  }
  for (const DirectoryChange& change : gone) tables_.Apply(change, /*orphans=*/nullptr);
  std::vector<uint64_t> ended;
  for (const auto& [id, lease] : tables_.leases.all())
    if (!members.contains(id)) ended.push_back(lease.id);
  for (const uint64_t lease : ended) tables_.EndLease(lease);
}

void DirectoryChanges::Lead(std::shared_ptr<ChangeJournal> journal, uint64_t folder_id,
                            std::function<bool()> is_sure) {
  CKV_CHECK(journal != nullptr && folder_id != 0);
  absl::MutexLock lock(&tables_.mu);
  journal_ = std::move(journal);
  tables_.incarnation = RandomDirectoryId();
  tables_.lead.Lead(std::move(is_sure));
  Start(folder_id);
  tables_.leases.Restart(tables_.options.clock->Now(), &RandomDirectoryId);
  for (const auto& [id, lease] : tables_.leases.all()) {
    if (lease.member.role != MemberRole::kHolder) continue;
    tables_.returning.NoteRegistered(id);
    // It registers here again, and then reports the chunks that it has.
    tables_.returning.NoteReporting(id);
  }
}

void DirectoryChanges::Follow() {
  absl::MutexLock lock(&tables_.mu);
  journal_.reset();
  tables_.lead.Follow();
  tables_.leases.Hold();
  for (const auto& [id, lease] : tables_.leases.all()) {
    tables_.corpora.Withdraw(lease.id, std::nullopt, tables_.corpora.replicas().ChunksOf(lease.id));
    tables_.lacks.Remove(id);
  }
  tables_.returning = ReturningHolders();
  tables_.reports.Clear();
  tables_.rebuild = {};
  tables_.watches.Break();
}

void DirectoryChanges::SetLeader(const std::string& address) {
  absl::MutexLock lock(&tables_.mu);
  tables_.lead.SetLeader(address);
  // Watchers have followed here because no directory led.
  if (!address.empty() && tables_.lead.term() == 0) tables_.watches.Break();
}

std::optional<DirectoryChanges::Leader> DirectoryChanges::leader() const {
  absl::MutexLock lock(&tables_.mu);
  if (!tables_.lead.is_shared()) return std::nullopt;
  return Leader{.is_this = tables_.lead.Leads(), .address = tables_.lead.leader()};
}

void DirectoryChanges::SubmitMembers() {
  std::vector<UnsavedMembers::Change> changes;
  uint64_t term = 0;
  {
    absl::MutexLock lock(&tables_.mu);
    term = tables_.lead.term();
    if (term == 0) return;
    changes = tables_.unsaved_members.Take(tables_.options.clock->Now());
  }
  for (const UnsavedMembers::Change& change : changes) SubmitIn(term, change);
}

void DirectoryChanges::SaveMembers(Instant deadline) {
  SubmitMembers();
  absl::MutexLock lock(&tables_.mu);
  const auto are_saved = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu) {
    return tables_.lead.term() == 0 || tables_.unsaved_members.empty();
  };
  tables_.options.clock->Await(tables_.mu, absl::Condition(&are_saved), deadline);
}

bool DirectoryChanges::ForgetUnsavedMembers() {
  absl::MutexLock lock(&tables_.mu);
  return tables_.unsaved_members.Clear();
}

}  // namespace ckv
