// First what a holder fetches: its corpora, their parts, and the tombstones since its last call.
// Then what it reports, in the order in which it does so after a registration: what it has seen,
// tombstones, parts, the end of its report, and the chunks that it lacks. Last what the directory
// makes of it: after a grace period, a corpus whose parts are all here and agree is published under
// the version that the holders report.
//
// The version decides between a report and what is here. A version in a gap of the numbers was not
// assigned by any incarnation that this folder remembers: its corpus yields to later reports.

#include "server/directory/holder_reports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

std::vector<std::shared_ptr<const Corpus>> HolderReports::ListPlacedCorpora(
    const HolderId& holder, std::optional<CorpusKey> after, size_t count_max) {
  std::vector<std::shared_ptr<const Corpus>> corpora;
  absl::MutexLock lock(&tables_.mu);
  const PlacedCorpora::CountByKey* placed = tables_.corpora.PlacedOn(holder);
  if (placed == nullptr) return corpora;
  auto next = after ? placed->upper_bound(*after) : placed->begin();
  for (; next != placed->end() && corpora.size() < count_max; ++next)
    corpora.push_back(tables_.corpora.Find(next->first));
  return corpora;
}

absl::StatusOr<CorpusPart> HolderReports::PartOf(const HolderId& holder, std::string_view tenant,
                                                 std::string_view name, uint32_t first_ordinal,
                                                 size_t count_max, uint32_t* next_ordinal) {
  std::shared_ptr<const Corpus> corpus;
  CorpusPart part;
  {
    absl::MutexLock lock(&tables_.mu);
    corpus = tables_.corpora.Find(CorpusKey(tenant, name));
    part.folder_id = tables_.numbers.folder_id();
  }
  if (corpus == nullptr)
    return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", name));
  part.corpus.name = corpus->name;
  part.corpus.tenant = corpus->tenant;
  part.corpus.geometry = corpus->geometry;
  part.corpus.version = corpus->version;
  part.corpus.replica_count = corpus->replica_count;
  part.corpus.policy = corpus->policy;
  part.chunk_count = static_cast<uint32_t>(corpus->chunks.size());
  if (next_ordinal != nullptr) *next_ordinal = 0;
  for (uint32_t i = first_ordinal; i < part.chunk_count; ++i) {
    const std::vector<HolderId>& holders = corpus->chunks[i].holders();
    if (std::find(holders.begin(), holders.end(), holder) == holders.end()) continue;
    if (part.ordinals.size() == count_max) {
      if (next_ordinal != nullptr) *next_ordinal = i;
      break;
    }
    part.ordinals.push_back(i);
    part.corpus.chunks.push_back(corpus->chunks[i]);
    part.corpus.chunks.back().set_token_hash({});  // holders keep none
  }
  return part;
}

HolderReports::News HolderReports::NewsSince(const SeenDirectory& seen) {
  absl::MutexLock lock(&tables_.mu);
  const uint64_t folder_id = tables_.numbers.folder_id();
  News news;
  // Changes that are not here yet have not been seen.
  news.seen = {folder_id, tables_.pending.AppliedUpTo(tables_.numbers)};
  news.dropped =
      tables_.dropped.After(seen.folder_id == folder_id ? seen.number : 0, kDroppedCountMax);
  return news;
}

absl::StatusOr<bool> HolderReports::NoteSeen(uint64_t lease_id, const SeenDirectory& seen) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, 0));
  ChangeNumbers& numbers = tables_.numbers;
  if (numbers.folder_id() == 0 || seen.folder_id == 0) return false;
  if (seen.folder_id != numbers.folder_id()) return true;
  if (!numbers.IsForgotten(seen.folder_id, seen.number)) return false;
  if (seen.number > numbers.last() + kNumberLeapMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("change %d was seen, %d is the last here", seen.number, numbers.last()));
  }
  numbers.Raise(seen.number);
  std::string& old_copy = tables_.rebuild.old_copy;
  if (old_copy.empty()) {
    old_copy = absl::StrFormat("holder %s has seen change %d, and the folder ends before it",
                               lease->member.id.name, seen.number);
    Log().error(
        "the directory's folder is an old copy, or lost its end: {}; corpora that were changed "
        "since are taken from the holders",
        old_copy);
  }
  return true;
}

bool HolderReports::Takes(const DroppedCorpus& dropped, const Corpus& here) const {
  if (here.version > dropped.version) return false;
  const bool is_rebuilt = tables_.numbers.IsInGap(here.version);
  if (dropped.folder_id != tables_.numbers.folder_id()) return is_rebuilt;
  // A corpus that was published since this directory started was meant.
  return tables_.numbers.IsForgotten(dropped.folder_id, dropped.number) &&
         (is_rebuilt || here.version <= tables_.numbers.first_version());
}

absl::Status HolderReports::ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                          std::span<const DroppedCorpus> dropped,
                                          Instant deadline) {
  if (dropped.size() > kDroppedCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d dropped corpora, limit %d a call", dropped.size(), kDroppedCountMax));
  }
  for (const DroppedCorpus& one : dropped) CKV_RETURN_IF_ERROR(ValidateDropped(one));
  CKV_ASSIGN_OR_RETURN(const bool wanted, NoteSeen(lease_id, seen));
  if (!wanted) return absl::OkStatus();
  deadline = tables_.LatestOf(deadline);
  std::vector<std::shared_ptr<PendingChange>> all;
  for (const DroppedCorpus& one : dropped) {
    const auto pending = std::make_shared<PendingChange>();
    std::shared_ptr<const DirectoryChange> change;
    {
      absl::MutexLock lock(&tables_.mu);
      CKV_RETURN_IF_ERROR(tables_.AwaitTurn(CorpusKey(one.tenant, one.name), deadline));
      CKV_RETURN_IF_ERROR(tables_.lead.Check());
      change = BeginDrop(one, pending);
    }
    if (change == nullptr) continue;
    all.push_back(pending);
    changes_.Submit(change);
  }
  return changes_.AwaitAll(all, deadline);
}

std::shared_ptr<const DirectoryChange> HolderReports::BeginDrop(
    const DroppedCorpus& dropped, const std::shared_ptr<PendingChange>& pending) {
  const CorpusKey key(dropped.tenant, dropped.name);
  const std::shared_ptr<const Corpus> here = tables_.corpora.Find(key);
  const bool takes = here != nullptr && Takes(dropped, *here);
  const bool is_known =
      tables_.dropped.Covers(dropped.tenant, dropped.name, dropped.folder_id, dropped.version);
  if (!takes && is_known) return nullptr;
  const auto change = std::make_shared<DirectoryChange>();
  change->kind = ChangeKind::kForget;
  change->tenant = dropped.tenant;
  change->name = dropped.name;
  change->folder_id = dropped.folder_id;
  change->version = dropped.version;
  change->removed_version = takes ? here->version : 0;
  change->number = tables_.numbers.Next();
  pending->number = change->number;
  tables_.AddPending(key, pending);
  if (takes) {
    ++tables_.rebuild.redropped_count;
    Log().warn("corpus \"{}\" version {} is dropped: a holder has seen that it was", dropped.name,
               here->version);
  }
  return change;
}

// A directory that gave the version, or a later one, has newer facts than a holder with that part.
bool HolderReports::IsSuperseded(const CorpusPart& part) const {
  const uint64_t version = part.corpus.version;
  const std::shared_ptr<const Corpus> here = tables_.corpora.Find(KeyOf(part.corpus));
  if (here != nullptr && here->version >= version) return true;
  if (tables_.dropped.Covers(part.corpus.tenant, part.corpus.name, part.folder_id, version))
    return true;
  // This folder gave the version and remembers its number, so the corpus is gone.
  return part.folder_id == tables_.numbers.folder_id() &&
         !tables_.numbers.IsForgotten(part.folder_id, version);
}

absl::StatusOr<bool> HolderReports::ReportPart(uint64_t lease_id, const CorpusPart& part) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, 0));
  ChangeNumbers& numbers = tables_.numbers;
  if (numbers.folder_id() == 0) return false;
  if (IsSuperseded(part)) return true;
  if (part.corpus.version > numbers.last() + kNumberLeapMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus part: version %d, %d is the last here", part.corpus.version, numbers.last()));
  }
  CKV_RETURN_IF_ERROR(tables_.reports.Add(lease->member.id, part));
  // The corpus's next version is above every version that any holder received.
  numbers.Raise(part.corpus.version);
  return false;
}

absl::Status HolderReports::FinishReport(uint64_t lease_id) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, 0));
  tables_.returning.EndReporting(lease->member.id);
  return absl::OkStatus();
}

absl::Status HolderReports::ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                          bool first, bool last) {
  absl::MutexLock lock(&tables_.mu);
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, tables_.leases.FindHolder(lease_id, ids.size()));
  CorporaByKey changed;
  for (const ChunkId& id : tables_.lacks.Take(lease->member.id, ids, first, last)) {
    for (const ChunkPlace& place : tables_.corpora.PlacesOf(id))
      changed.try_emplace(KeyOf(*place.corpus), place.corpus);
  }
  tables_.watches.NoteChange();
  // Requesters that cache the corpus query again, and are sent to other holders.
  tables_.watches.ReportReplicasChanged(changed);
  return absl::OkStatus();
}

absl::Status HolderReports::CheckRebuilt(const Corpus& corpus) const {
  const CorpusKey key = KeyOf(corpus);
  if (tables_.pending.Has(key)) return absl::UnavailableError("it is being changed");
  const std::shared_ptr<const Corpus> here = tables_.corpora.Find(key);
  // The corpus that is here was meant, unless this folder then gave a later version.
  const bool replaces = here == nullptr || tables_.numbers.IsInGap(here->version) ||
                        tables_.reports.IsReported(key, tables_.numbers.folder_id());
  if (!replaces) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "another directory gave version %d, and version %d was published here: it is served",
        corpus.version, here->version));
  }
  return tables_.CheckPublish(corpus, /*replace=*/true, /*expected_version=*/0);
}

bool HolderReports::BeginRebuilt(std::shared_ptr<const DirectoryChange>& change) {
  if (!tables_.lead.Leads()) return false;
  if (tables_.numbers.folder_id() == 0) return false;
  if (tables_.options.clock->Now() < tables_.rebuild.from) return false;
  std::optional<Corpus> corpus = tables_.reports.TakeWhole();
  if (!corpus) return false;
  const CorpusKey key = KeyOf(*corpus);
  if (const absl::Status status = CheckRebuilt(*corpus); !status.ok()) {
    tables_.reports.NoteRefusal(key, std::string(status.message()));
    Log().warn("corpus \"{}\" is whole again, and is not published: {}", key.second,
               std::string(status.message()));
    return true;
  }
  Log().info("corpus \"{}\" is whole again from what holders reported: {} chunks, version {}",
             key.second, corpus->chunks.size(), corpus->version);
  const auto pending = std::make_shared<PendingChange>();
  pending->number = corpus->version;
  pending->is_rebuilt = true;
  pending->is_new = tables_.corpora.Find(key) == nullptr;
  pending->added_count = corpus->chunks.size();
  tables_.AddPending(key, pending);
  auto begun = std::make_shared<DirectoryChange>();
  begun->corpus = std::make_shared<const Corpus>(*std::move(corpus));
  change = std::move(begun);
  return true;
}

void HolderReports::PublishRebuilt() {
  for (bool more = true; more;) {
    std::shared_ptr<const DirectoryChange> change;
    {
      absl::MutexLock lock(&tables_.mu);
      more = BeginRebuilt(change);
    }
    if (change != nullptr) changes_.Submit(change);
  }
}

HolderReports::Rebuilt HolderReports::rebuilt(size_t count_max) {
  absl::MutexLock lock(&tables_.mu);
  return {.rebuilt_count = tables_.rebuild.rebuilt_count,
          .unproven_count = static_cast<uint32_t>(tables_.reports.count()),
          .unproven = tables_.reports.List(count_max),
          .old_copy = tables_.rebuild.old_copy,
          .redropped_count = tables_.rebuild.redropped_count};
}

}  // namespace ckv
