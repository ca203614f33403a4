// Tombstones that holders keep, for a directory that lost its disk or was restored from an old
// copy.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"

namespace ckv {
namespace {

// Returns the number, or the last one given before it if it is in a gap.
uint64_t LastGiven(const VersionGaps& gaps, uint64_t number) {
  for (const VersionGap& gap : gaps.all())
    if (gap.after < number && number <= gap.until) return gap.after;
  return number;
}

}  // namespace

DirectoryState::News DirectoryState::NewsSince(const SeenDirectory& seen) {
  absl::MutexLock lock(&mu_);
  News news;
  news.seen = {folder_id_, applied_};
  // Changes become durable in another order than they are numbered. Those that are not here yet
  // have not been seen. A corpus that is rebuilt has no number of this folder.
  for (const auto& [key, pending] : pending_) {
    if (!pending->is_rebuilt)
      news.seen.number = std::min(news.seen.number, LastGiven(gaps_, pending->number - 1));
  }
  news.dropped = dropped_.After(seen.folder_id == folder_id_ ? seen.number : 0, kDroppedCountMax);
  return news;
}

absl::StatusOr<bool> DirectoryState::NoteSeen(uint64_t lease_id, const SeenDirectory& seen) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, FindHolderLease(lease_id, 0));
  if (folder_id_ == 0 || seen.folder_id == 0) return false;
  if (seen.folder_id != folder_id_) return true;
  if (!IsForgotten(folder_id_, seen.number)) return false;
  if (seen.number > last_version_ + kNumberLeapMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("change %d was seen, %d is the last here", seen.number, last_version_));
  }
  RaiseVersions(seen.number);
  if (old_copy_.empty()) {
    old_copy_ = absl::StrFormat("holder %s has seen change %d, and the folder ends before it",
                                lease->member.id.name, seen.number);
    Log().error(
        "the directory's folder is an old copy, or lost its end: {}; corpora that were changed "
        "since are taken from the holders",
        old_copy_);
  }
  return true;
}

bool DirectoryState::Takes(const DroppedCorpus& dropped, const Corpus& here) const {
  if (here.version > dropped.version) return false;
  const bool is_rebuilt = gaps_.Has(here.version);
  if (dropped.folder_id != folder_id_) return is_rebuilt;
  // A corpus that was published since this directory started was meant.
  return IsForgotten(folder_id_, dropped.number) && (is_rebuilt || here.version <= first_version_);
}

absl::Status DirectoryState::ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                           std::span<const DroppedCorpus> dropped,
                                           Instant deadline) {
  if (dropped.size() > kDroppedCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d dropped corpora, limit %d a call", dropped.size(), kDroppedCountMax));
  }
  for (const DroppedCorpus& one : dropped) CKV_RETURN_IF_ERROR(ValidateDropped(one));
  CKV_ASSIGN_OR_RETURN(const bool wanted, NoteSeen(lease_id, seen));
  if (!wanted) return absl::OkStatus();
  deadline = LatestOf(deadline);
  std::vector<std::shared_ptr<Pending>> all;
  for (const DroppedCorpus& one : dropped) {
    const auto pending = std::make_shared<Pending>();
    const auto change = std::make_shared<DirectoryChange>();
    {
      absl::MutexLock lock(&mu_);
      const CorpusKey key(one.tenant, one.name);
      CKV_RETURN_IF_ERROR(AwaitTurn(key, deadline));
      const auto here = corpora_.find(key);
      const bool takes = here != corpora_.end() && Takes(one, *here->second);
      if (!takes && dropped_.Covers(one.tenant, one.name, one.folder_id, one.version)) continue;
      change->kind = ChangeKind::kForget;
      change->tenant = one.tenant;
      change->name = one.name;
      change->folder_id = one.folder_id;
      change->version = one.version;
      change->removed_version = takes ? here->second->version : 0;
      change->number = ++last_version_;
      pending->number = change->number;
      pending_.emplace(key, pending);
      if (takes) {
        ++redropped_count_;
        Log().warn("corpus \"{}\" version {} is dropped: a holder has seen that it was", one.name,
                   here->second->version);
      }
    }
    all.push_back(pending);
    SubmitOrSettle(change);
  }
  absl::MutexLock lock(&mu_);
  for (const std::shared_ptr<Pending>& pending : all) {
    if (!options_.clock->Await(mu_, absl::Condition(&pending->is_settled), deadline))
      return absl::DeadlineExceededError("the drops are not durable yet");
    CKV_RETURN_IF_ERROR(pending->status);
  }
  return absl::OkStatus();
}

void DirectoryState::ApplyDrop(const DirectoryChange& change) {
  const CorpusKey key(change.tenant, change.name);
  const uint64_t folder_id = change.kind == ChangeKind::kDrop ? folder_id_ : change.folder_id;
  dropped_.Note({change.tenant, change.name, folder_id, change.version, change.number});
  const std::optional<UnprovenCorpus> unproven = rebuild_.Find(key);
  if (!unproven) return;
  // The reporters query again, report the corpus once more, and are answered that it is superseded.
  for (const HolderId& reporter : unproven->reporters) NotePlacedChange(reporter);
  rebuild_.Forget(key, change.version, change.kind == ChangeKind::kDrop ? 0 : folder_id);
}

void DirectoryState::TellOfDrop(const Corpus* gone) {
  bool is_away = gone == nullptr;
  for (size_t i = 0; gone != nullptr && !is_away && i < gone->chunks.size(); ++i) {
    const std::vector<HolderId>& holders = gone->chunks[i].holders;
    // Adjacent chunks mostly have the same holders.
    if (i > 0 && holders == gone->chunks[i - 1].holders) continue;
    for (const HolderId& holder : holders) is_away |= !lease_by_member_.contains(holder);
  }
  if (!is_away) return;
  for (auto& [id, lease] : leases_) ++lease.placed_change_count;
}

}  // namespace ckv
