// In the order of a directory's run: the log is replayed, an incarnation starts, changes are
// submitted and settled, and an image is taken for a snapshot. A gap in the numbers is saved in
// front of the next change, because no change after it may be read without it. Settle runs on the
// journal's thread, or on the caller's if the journal is missing or refuses.

#include "server/directory/directory_changes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

void DirectoryChanges::SetJournal(ChangeJournal* journal, uint64_t folder_id) {
  CKV_CHECK(journal != nullptr && folder_id != 0);
  absl::MutexLock lock(&tables_.mu);
  is_durable_ = true;
  journal_ = std::shared_ptr<ChangeJournal>(journal, [](ChangeJournal*) {});
  Start(folder_id);
}

void DirectoryChanges::StartInMemory() {
  absl::MutexLock lock(&tables_.mu);
  Start(tables_.incarnation);
}

void DirectoryChanges::Start(uint64_t folder_id) {
  const DirectoryOptions& options = tables_.options;
  tables_.numbers.Start(folder_id, is_durable_);
  tables_.returning.Start(tables_.corpora, options.clock->Now() + options.lease_ttl);
  tables_.rebuild.from = options.clock->Now() + options.rebuild_grace;
}

absl::Status DirectoryChanges::Replay(const DirectoryChange& change) {
  absl::MutexLock lock(&tables_.mu);
  tables_.epochs.Replay(change.epoch_max);
  switch (change.kind) {
    case ChangeKind::kPublish:
    case ChangeKind::kDrop:
    case ChangeKind::kForget:
      break;
    case ChangeKind::kTenantKey:
    case ChangeKind::kDrain:
      tables_.Apply(change, /*orphans=*/nullptr);
      return absl::OkStatus();
    case ChangeKind::kGap:
      tables_.numbers.ReplayGap(change.gap);
      return absl::OkStatus();
    default:
      tables_.numbers.NoteApplied(change.version);
      tables_.numbers.Replay(change.version);
      return absl::OkStatus();
  }
  const uint64_t version = change.kind == ChangeKind::kPublish  ? change.corpus->version
                           : change.kind == ChangeKind::kForget ? change.removed_version
                                                                : change.version;
  CKV_RETURN_IF_ERROR(CheckReplayed(change, version));
  tables_.Apply(change, /*orphans=*/nullptr);
  tables_.numbers.Replay(version);
  return absl::OkStatus();
}

absl::Status DirectoryChanges::CheckReplayed(const DirectoryChange& change,
                                             uint64_t version) const {
  const bool publishes = change.kind == ChangeKind::kPublish;
  const CorpusKey key = KeyOf(change);
  const std::shared_ptr<const Corpus> current = tables_.corpora.Find(key);
  const uint64_t before = current == nullptr ? 0 : current->version;
  const bool removes = change.kind == ChangeKind::kDrop || change.removed_version != 0;
  if (publishes ? version <= before : removes && (version != before || before == 0)) {
    return absl::DataLossError(absl::StrFormat("corpus \"%s\": version %d is %s after version %d",
                                               key.second, version,
                                               publishes ? "published" : "dropped", before));
  }
  return absl::OkStatus();
}

void DirectoryChanges::Submit(const std::shared_ptr<const DirectoryChange>& change) {
  uint64_t term = 0;
  {
    absl::MutexLock lock(&tables_.mu);
    term = tables_.pending.Find(KeyOf(*change))->term;
  }
  SubmitIn(term, change);
}

void DirectoryChanges::SubmitIn(uint64_t term,
                                const std::shared_ptr<const DirectoryChange>& change) {
  std::shared_ptr<ChangeJournal> journal;
  std::vector<VersionGap> gaps;
  absl::Status submitted;
  {
    absl::MutexLock lock(&tables_.mu);
    journal = journal_;
    if (term != tables_.lead.term()) {
      submitted = absl::UnavailableError(
          "this directory led when the change was checked, and "
          "does not any more: nothing was changed");
    } else if (journal != nullptr) {
      gaps = tables_.numbers.TakeUnsaved();
    }
  }
  if (!submitted.ok() || journal == nullptr) return Settle(*change, submitted);
  for (const VersionGap& gap : gaps) {
    const auto record = std::make_shared<DirectoryChange>();
    record->kind = ChangeKind::kGap;
    record->gap = gap;
    submitted.Update(journal->Submit(record));
    if (!submitted.ok()) Settle(*record, submitted);
  }
  submitted.Update(submitted.ok() ? journal->Submit(change) : submitted);
  if (!submitted.ok()) Settle(*change, submitted);
}

absl::Status DirectoryChanges::Commit(const std::shared_ptr<const DirectoryChange>& change,
                                      const PendingChange* pending, Instant deadline) {
  Submit(change);
  absl::MutexLock lock(&tables_.mu);
  if (tables_.options.clock->Await(tables_.mu, absl::Condition(&pending->is_settled), deadline))
    return pending->status;
  return absl::DeadlineExceededError(
      "the change is not durable yet and may become so: look whether it was made");
}

absl::Status DirectoryChanges::AwaitAll(std::span<const std::shared_ptr<PendingChange>> all,
                                        Instant deadline) {
  absl::MutexLock lock(&tables_.mu);
  for (const std::shared_ptr<PendingChange>& pending : all) {
    if (!tables_.options.clock->Await(tables_.mu, absl::Condition(&pending->is_settled), deadline))
      return absl::DeadlineExceededError("some changes are not durable yet: make the call again");
    CKV_RETURN_IF_ERROR(pending->status);
  }
  return absl::OkStatus();
}

absl::Status DirectoryChanges::ReserveEpochs(Instant deadline) {
  const auto change = std::make_shared<DirectoryChange>();
  change->kind = ChangeKind::kEpochs;
  bool is_left = false;
  uint64_t term = 0;
  {
    absl::MutexLock lock(&tables_.mu);
    if (journal_ == nullptr) return absl::OkStatus();
    term = tables_.lead.term();
    if (!tables_.epochs.IsLow()) return absl::OkStatus();
    is_left = tables_.epochs.IsLeft();
    if (is_left && tables_.epochs.is_reserving()) return absl::OkStatus();
    change->epoch_max = tables_.epochs.BeginReservation();
  }
  if (change->epoch_max != 0) SubmitIn(term, change);
  if (is_left) return absl::OkStatus();
  absl::MutexLock lock(&tables_.mu);
  const auto is_reserved = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu) {
    return !tables_.epochs.is_reserving();
  };
  if (!tables_.options.clock->Await(tables_.mu, absl::Condition(&is_reserved),
                                    tables_.LatestOf(deadline))) {
    return absl::DeadlineExceededError("the next epochs are not durable yet");
  }
  return tables_.epochs.IsLeft() ? absl::OkStatus() : tables_.epochs.reserved();
}

void DirectoryChanges::Settle(const DirectoryChange& change, const absl::Status& status) {
  absl::MutexLock lock(&tables_.mu);
  if (change.kind == ChangeKind::kEpochs) return tables_.epochs.Settle(change.epoch_max, status);
  if (change.kind == ChangeKind::kGap) {
    if (!status.ok()) tables_.numbers.NoteUnsaved(change.gap);
    return;
  }
  if (change.kind == ChangeKind::kMember || change.kind == ChangeKind::kMemberGone)
    return tables_.unsaved_members.Settle(change, status.ok(), tables_.options.clock->Now());
  const std::shared_ptr<PendingChange> pending = tables_.pending.Take(KeyOf(change));
  if (status.ok()) tables_.Apply(change, &pending->orphans);
  if (status.ok() && pending->is_rebuilt) ++tables_.rebuild.rebuilt_count;
  pending->status = status;
  pending->is_settled = true;
}

DirectoryImage DirectoryChanges::Image() {
  absl::MutexLock lock(&tables_.mu);
  DirectoryImage image;
  image.corpora.reserve(tables_.corpora.all().size());
  for (const auto& [key, corpus] : tables_.corpora.all()) image.corpora.push_back(corpus);
  image.gaps = tables_.numbers.gaps();
  image.dropped = tables_.dropped.All();
  image.keys = tables_.keys.All();
  image.draining.assign(tables_.draining.begin(), tables_.draining.end());
  image.version = tables_.numbers.applied();
  image.epoch_max = tables_.epochs.highest();
  return image;
}

}  // namespace ckv
