// The steps that touch several tables, in the order in which a change meets them: it waits for its
// turn, is checked, and, once it is durable, is applied. A replayed change is applied the same way.
// Applying moves the places of chunks first, then the numbers, then the reports and tombstones, and
// the watchers' queues last.

#include "server/directory/directory_tables.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/host/platform.h"

namespace ckv {

uint64_t RandomDirectoryId() {
  uint64_t id = 0;
  while (id == 0) id = RandomWord();
  return id;
}

CorpusKey KeyOf(const DirectoryChange& change) {
  if (change.kind == ChangeKind::kPublish) return KeyOf(*change.corpus);
  // No corpus has the empty name, so it can identify the tenant's key, and the list of drained
  // holders: the shared tenant has no key.
  return {change.tenant, change.name};
}

DirectoryTables::DirectoryTables(const DirectoryOptions& with)
    : options(with),
      incarnation(RandomDirectoryId()),
      epochs(with.first_epoch),
      corpora(with.replica_count_max),
      lacks(with.lack_count_max),
      numbers(with.first_epoch),
      reports(with.placement_count_max, with.corpus_count_max) {}

void DirectoryTables::Expire() {
  if (!lead.Leads()) return;  // a mirror, or the leases are another directory's by now
  const Instant now = options.clock->Now();
  for (const uint64_t id : leases.Expired(now)) {
    leases.NoteEnded(leases.Find(id)->member, now, /*ran_out=*/true);
    EndLease(id);
  }
}

void DirectoryTables::EndLease(uint64_t lease_id, bool is_replaced) {
  const Member member = leases.Find(lease_id)->member;
  if (!is_replaced) {
    watches.Notify(
        {.kind = DirectoryEvent::Kind::kMemberGone, .member = member, .corpus = nullptr});
    DirectoryChange gone;
    gone.kind = ChangeKind::kMemberGone;
    gone.member = member;
    NoteMemberChange(std::move(gone));
  }
  watches.ReportReplicasChanged(
      corpora.Withdraw(lease_id, std::nullopt, corpora.replicas().ChunksOf(lease_id)));
  returning.EndReporting(member.id);
  lacks.Remove(member.id);
  leases.Remove(lease_id);
}

void DirectoryTables::AddLease(Lease lease, bool is_replacing) {
  if (!is_replacing) {
    watches.Notify(
        {.kind = DirectoryEvent::Kind::kMemberUp, .member = lease.member, .corpus = nullptr});
    DirectoryChange added;
    added.kind = ChangeKind::kMember;
    added.member = lease.member;
    added.lease_ttl = lease.ttl;
    NoteMemberChange(std::move(added));
  }
  leases.Add(std::move(lease));
}

void DirectoryTables::NoteMemberChange(DirectoryChange change) {
  if (!lead.is_shared() || lead.term() == 0) return;
  unsaved_members.Note(std::move(change));
}

void DirectoryTables::AddPending(const CorpusKey& key,
                                 const std::shared_ptr<PendingChange>& change) {
  change->term = lead.term();
  pending.Add(key, change);
}

CoverageView::Holders DirectoryTables::LackingHolders(const Corpus& corpus) const {
  CoverageView::Holders holders;
  const CorpusKey key = KeyOf(corpus);
  for (const auto& [holder, chunks] : lacks.all()) {
    const PlacedCorpora::CountByKey* placed = corpora.PlacedOn(holder);
    if (placed != nullptr && placed->contains(key)) holders.lacking.emplace(holder, chunks);
  }
  if (holders.lacking.empty()) return holders;
  for (const auto& [id, lease] : leases.all()) holders.live.insert(id);
  return holders;
}

Instant DirectoryTables::LatestOf(Instant deadline) const {
  return std::min(deadline, options.clock->Now() + options.change_timeout);
}

absl::Status DirectoryTables::AwaitTurn(const CorpusKey& key, Instant deadline) {
  const auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return !pending.Has(key); };
  if (options.clock->Await(mu, absl::Condition(&is_free), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("corpus \"%s\": an earlier change of it is still not durable", key.second));
}

absl::Status DirectoryTables::CheckPublish(const Corpus& corpus, bool replace,
                                           uint64_t expected_version) const {
  const std::shared_ptr<const Corpus> current = corpora.Find(KeyOf(corpus));
  const uint64_t version = current != nullptr ? current->version : 0;
  if (expected_version != 0 && expected_version != version) {
    return absl::FailedPreconditionError(
        absl::StrFormat("corpus \"%s\": version %d expected, %d is current", corpus.name,
                        expected_version, version));
  }
  if (current != nullptr && !replace) {
    return absl::AlreadyExistsError(
        absl::StrFormat("corpus \"%s\" exists in version %d", corpus.name, version));
  }
  const uint64_t corpus_count = corpora.all().size() + pending.NewCorpusCount();
  if (current == nullptr && corpus_count >= options.corpus_count_max)
    return absl::ResourceExhaustedError(absl::StrFormat("%d corpora, limit reached", corpus_count));
  const uint64_t chunk_count = corpora.chunk_count() + pending.AddedChunkCount();
  const uint64_t freed = current != nullptr ? current->chunks.size() : 0;
  const uint64_t free_count =
      options.placement_count_max - std::min(chunk_count - freed, options.placement_count_max);
  if (corpus.chunks.size() > free_count) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("corpus \"%s\": %d chunks, %d of %d are free", corpus.name,
                        corpus.chunks.size(), free_count, options.placement_count_max));
  }
  return absl::OkStatus();
}

void DirectoryTables::Apply(const DirectoryChange& change, std::vector<ChunkPlacement>* orphans) {
  if (change.kind == ChangeKind::kTenantKey) {
    keys.Add(change.tenant, change.key);
    return;
  }
  if (change.kind == ChangeKind::kDrain) return ApplyDrain(change);
  const bool publishes = change.kind == ChangeKind::kPublish;
  const CorpusKey key = KeyOf(change);
  const bool removes = publishes || change.kind == ChangeKind::kDrop || change.removed_version != 0;
  const std::shared_ptr<const Corpus> gone = removes ? corpora.Find(key) : nullptr;
  for (const Corpus* corpus : {gone.get(), change.corpus.get()}) {
    if (corpus == nullptr) continue;
    for (const HolderId& holder : HoldersOf(*corpus)) leases.NotePlacedChange(holder);
  }
  if (removes) corpora.Replace(key, change.corpus, reports, orphans);
  // The version of a corpus that was rebuilt does not show that earlier changes are here.
  const bool is_rebuilt = publishes && numbers.IsInGap(change.corpus->version);
  if (!is_rebuilt) numbers.NoteApplied(publishes ? change.corpus->version : change.number);
  if (publishes) {
    // Reports of it are no longer needed.
    reports.Remove(key, change.corpus->version, /*folder_id=*/0);
    watches.Notify(
        {.kind = DirectoryEvent::Kind::kCorpusPublished, .member = {}, .corpus = change.corpus});
    return;
  }
  ApplyDrop(change);
  ReportDrop(gone.get());
  if (gone == nullptr) return;
  watches.Notify({.kind = DirectoryEvent::Kind::kCorpusDropped, .member = {}, .corpus = gone});
}

void DirectoryTables::ApplyDrain(const DirectoryChange& change) {
  const HolderId holder = {change.holder};
  watches.NoteChange();
  if (!change.drains) {
    draining.erase(holder);
    return;
  }
  draining.insert(holder);
  // Its leased copies leave at once: each chunk has other holders.
  const Lease* const lease = leases.FindMember(holder);
  if (lease == nullptr) return;
  watches.ReportReplicasChanged(
      corpora.Withdraw(lease->id, std::nullopt, corpora.replicas().ChunksOf(lease->id)));
}

void DirectoryTables::ApplyDrop(const DirectoryChange& change) {
  const CorpusKey key(change.tenant, change.name);
  const uint64_t folder_id =
      change.kind == ChangeKind::kDrop ? numbers.folder_id() : change.folder_id;
  dropped.Note({change.tenant, change.name, folder_id, change.version, change.number});
  const std::optional<UnprovenCorpus> unproven = reports.Find(key);
  if (!unproven) return;
  // The reporters query again, report the corpus once more, and are answered that it is superseded.
  for (const HolderId& reporter : unproven->reporters) leases.NotePlacedChange(reporter);
  reports.Remove(key, change.version, change.kind == ChangeKind::kDrop ? 0 : folder_id);
}

void DirectoryTables::ReportDrop(const Corpus* gone) {
  if (gone != nullptr) {
    const absl::btree_set<HolderId> holders = HoldersOf(*gone);
    const bool all_live =
        std::all_of(holders.begin(), holders.end(),
                    [this](const HolderId& holder)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return leases.Has(holder); });
    if (all_live) return;
  }
  leases.NotePlacedChange();
}

}  // namespace ckv
