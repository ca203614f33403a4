// Export takes an image under the lock and encodes it without. Import begins each change as if it
// were a caller's, submits all of a piece, and then waits for all of them: so a piece takes as long
// as one sync.

#include "server/directory/directory_backup.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

void DirectoryBackup::Export(absl::FunctionRef<bool(std::string_view records)> take) {
  const DirectoryImage image = changes_.Image();
  uint64_t folder_id = 0;
  {
    absl::MutexLock lock(&tables_.mu);
    folder_id = tables_.numbers.folder_id();
  }
  std::string records;
  const auto add = [&](const DirectoryChange& change) {
    AppendRecord(change, records);
    if (records.size() < kPieceBytes) return absl::OkStatus();
    const bool is_taken = take(records);
    records.clear();
    return is_taken ? absl::OkStatus() : absl::CancelledError("the reader has gone");
  };
  const bool is_whole = ForEachChange(image, folder_id, add).ok();
  if (is_whole && !records.empty()) take(records);
}

absl::Status DirectoryBackup::Import(std::span<const DirectoryChange> changes, Instant deadline,
                                     Counts& counts) {
  deadline = tables_.LatestOf(deadline);
  std::vector<std::shared_ptr<PendingChange>> all;
  absl::Status status;
  for (const DirectoryChange& imported : changes) {
    const auto pending = std::make_shared<PendingChange>();
    std::shared_ptr<const DirectoryChange> change;
    {
      absl::MutexLock lock(&tables_.mu);
      status = Begin(imported, deadline, pending, change, counts);
    }
    if (!status.ok()) break;
    if (change == nullptr) continue;
    all.push_back(pending);
    changes_.Submit(change);
  }
  CKV_RETURN_IF_ERROR(changes_.AwaitAll(all, deadline));
  return status;
}

absl::Status DirectoryBackup::Begin(const DirectoryChange& imported, Instant deadline,
                                    const std::shared_ptr<PendingChange>& pending,
                                    std::shared_ptr<const DirectoryChange>& change,
                                    Counts& counts) {
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  switch (imported.kind) {
    case ChangeKind::kPublish:
      CKV_RETURN_IF_ERROR(ValidateCorpus(*imported.corpus));
      break;
    case ChangeKind::kForget:
    case ChangeKind::kTenantKey:
    case ChangeKind::kDrain:
      break;
    default:
      // No epoch of the other directory is given again.
      tables_.epochs.NotePrevious({imported.epoch_max});
      return absl::OkStatus();
  }
  CKV_RETURN_IF_ERROR(tables_.AwaitTurn(KeyOf(imported), deadline));
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  if (imported.kind == ChangeKind::kPublish) return BeginCorpus(imported, pending, change, counts);
  auto begun = std::make_shared<DirectoryChange>(imported);
  if (imported.kind == ChangeKind::kTenantKey) {
    if (const auto known = tables_.keys.Find(imported.tenant)) {
      ++counts.same_count;
      if (*known == imported.key) return absl::OkStatus();
      return absl::AlreadyExistsError(absl::StrFormat(
          "tenant \"%s\" has another key here: its chunks have other ids", imported.tenant));
    }
    pending->number = tables_.numbers.last() + 1;  // it has none
    ++counts.key_count;
  } else if (imported.kind == ChangeKind::kDrain) {
    if (tables_.draining.contains({imported.holder})) return absl::OkStatus();
    pending->number = tables_.numbers.last() + 1;  // it has none
  } else {
    if (tables_.dropped.Covers(imported.tenant, imported.name, imported.folder_id,
                               imported.version)) {
      return absl::OkStatus();
    }
    begun->removed_version = 0;
    begun->number = pending->number = tables_.numbers.Next();
    ++counts.tombstone_count;
  }
  tables_.AddPending(KeyOf(imported), pending);
  change = std::move(begun);
  return absl::OkStatus();
}

absl::Status DirectoryBackup::BeginCorpus(const DirectoryChange& imported,
                                          const std::shared_ptr<PendingChange>& pending,
                                          std::shared_ptr<const DirectoryChange>& change,
                                          Counts& counts) {
  const Corpus& corpus = *imported.corpus;
  const CorpusKey key = KeyOf(corpus);
  if (const auto here = tables_.corpora.Find(key); here != nullptr) {
    ++counts.same_count;
    if (here->version == corpus.version) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrFormat("corpus \"%s\" is here in version %d, and would be imported in version %d: "
                        "drop one of them first",
                        corpus.name, here->version, corpus.version));
  }
  ChangeNumbers& numbers = tables_.numbers;
  if (corpus.version > numbers.last() + kNumberLeapMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("corpus \"%s\": version %d, %d is the last here", corpus.name,
                        corpus.version, numbers.last()));
  }
  // Its next version is above it.
  numbers.Raise(corpus.version);
  CKV_RETURN_IF_ERROR(tables_.CheckPublish(corpus, /*replace=*/false, /*expected_version=*/0));
  pending->number = corpus.version;
  pending->is_rebuilt = true;
  pending->is_new = true;
  pending->added_count = corpus.chunks.size();
  tables_.AddPending(key, pending);
  change = std::make_shared<const DirectoryChange>(imported);
  ++counts.corpus_count;
  return absl::OkStatus();
}

}  // namespace ckv
