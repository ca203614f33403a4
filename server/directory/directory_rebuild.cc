// The parts of corpora that holders keep: what holders receive, what they report, and what is
// rebuilt from the reports.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"

namespace ckv {

std::vector<std::shared_ptr<const Corpus>> DirectoryState::ListPlacedCorpora(
    const HolderId& holder, std::optional<CorpusKey> after, size_t count_max) {
  std::vector<std::shared_ptr<const Corpus>> corpora;
  absl::MutexLock lock(&mu_);
  const auto placed = placed_on_.find(holder);
  if (placed == placed_on_.end()) return corpora;
  auto next = after ? placed->second.upper_bound(*after) : placed->second.begin();
  for (; next != placed->second.end() && corpora.size() < count_max; ++next)
    corpora.push_back(corpora_.find(next->first)->second);
  return corpora;
}

absl::StatusOr<CorpusPart> DirectoryState::PartOf(const HolderId& holder, std::string_view tenant,
                                                  std::string_view name, uint32_t first_ordinal,
                                                  size_t count_max, uint32_t* next_ordinal) {
  std::shared_ptr<const Corpus> corpus;
  {
    absl::MutexLock lock(&mu_);
    const auto found = corpora_.find(CorpusKey(tenant, name));
    if (found == corpora_.end())
      return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", name));
    corpus = found->second;
  }
  CorpusPart part;
  part.corpus.name = corpus->name;
  part.corpus.tenant = corpus->tenant;
  part.corpus.geometry = corpus->geometry;
  part.corpus.version = corpus->version;
  part.chunk_count = static_cast<uint32_t>(corpus->chunks.size());
  part.folder_id = folder_id_;
  if (next_ordinal != nullptr) *next_ordinal = 0;
  for (uint32_t i = first_ordinal; i < part.chunk_count; ++i) {
    const std::vector<HolderId>& holders = corpus->chunks[i].holders;
    if (std::find(holders.begin(), holders.end(), holder) == holders.end()) continue;
    if (part.ordinals.size() == count_max) {
      if (next_ordinal != nullptr) *next_ordinal = i;
      break;
    }
    part.ordinals.push_back(i);
    part.corpus.chunks.push_back(corpus->chunks[i]);
    part.corpus.chunks.back().print = {};  // holders keep none
  }
  return part;
}

// A directory that gave the version, or a later one, has newer facts than a holder with that part.
bool DirectoryState::IsSuperseded(const CorpusPart& part) const {
  const uint64_t version = part.corpus.version;
  const auto here = corpora_.find(CorpusKey(part.corpus.tenant, part.corpus.name));
  if (here != corpora_.end() && here->second->version >= version) return true;
  if (dropped_.Covers(part.corpus.tenant, part.corpus.name, part.folder_id, version)) return true;
  // This folder gave the version and remembers its number, so the corpus is gone.
  return part.folder_id == folder_id_ && !IsForgotten(folder_id_, version);
}

bool DirectoryState::IsForgotten(uint64_t folder_id, uint64_t number) const {
  return folder_id == folder_id_ && (number > last_version_ || gaps_.Has(number));
}

void DirectoryState::RaiseVersions(uint64_t number) {
  AddGap({last_version_, number});
  last_version_ = std::max(last_version_, number);
}

void DirectoryState::AddGap(const VersionGap& gap) {
  if (gap.until <= gap.after) return;
  gaps_.Add(gap);
  if (journal_ != nullptr) unsaved_gaps_.push_back(gap);
}

absl::StatusOr<bool> DirectoryState::ReportPart(uint64_t lease_id, const CorpusPart& part) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, FindHolderLease(lease_id, 0));
  if (folder_id_ == 0) return false;
  if (IsSuperseded(part)) return true;
  if (part.corpus.version > last_version_ + kNumberLeapMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus part: version %d, %d is the last here", part.corpus.version, last_version_));
  }
  CKV_RETURN_IF_ERROR(rebuild_.Add(lease->member.id, part));
  // The corpus's next version is above every version that any holder received.
  RaiseVersions(part.corpus.version);
  return false;
}

absl::Status DirectoryState::FinishReport(uint64_t lease_id) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, FindHolderLease(lease_id, 0));
  reporting_.erase(lease->member.id);
  return absl::OkStatus();
}

absl::Status DirectoryState::CheckRebuilt(const Corpus& corpus) const {
  const CorpusKey key(corpus.tenant, corpus.name);
  if (pending_.contains(key)) return absl::UnavailableError("it is being changed");
  const auto here = corpora_.find(key);
  // The corpus that is here was meant, unless this folder then gave a later version.
  const bool replaces = here == corpora_.end() || gaps_.Has(here->second->version) ||
                        rebuild_.IsTold(key, folder_id_);
  if (!replaces) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "another directory gave version %d, and version %d was published here: it is served",
        corpus.version, here->second->version));
  }
  return CheckPublish(corpus, /*replace=*/true, /*expected_version=*/0);
}

void DirectoryState::PublishRebuilt() {
  while (true) {
    const auto change = std::make_shared<DirectoryChange>();
    {
      absl::MutexLock lock(&mu_);
      if (folder_id_ == 0 || options_.clock->Now() < rebuild_from_) return;
      std::optional<Corpus> corpus = rebuild_.TakeWhole();
      if (!corpus) return;
      const CorpusKey key(corpus->tenant, corpus->name);
      if (const absl::Status status = CheckRebuilt(*corpus); !status.ok()) {
        rebuild_.NoteRefusal(key, std::string(status.message()));
        Log().warn("corpus \"{}\" is whole again, and is not published: {}", key.second,
                   std::string(status.message()));
        continue;
      }
      Log().info("corpus \"{}\" is whole again from what holders reported: {} chunks, version {}",
                 key.second, corpus->chunks.size(), corpus->version);
      const auto pending = std::make_shared<Pending>();
      pending->number = corpus->version;
      pending->is_rebuilt = true;
      pending->is_new = !corpora_.contains(key);
      pending->added_count = corpus->chunks.size();
      pending_.emplace(key, pending);
      change->corpus = std::make_shared<const Corpus>(*std::move(corpus));
    }
    SubmitOrSettle(change);
  }
}

DirectoryState::Rebuilt DirectoryState::rebuilt(size_t count_max) {
  absl::MutexLock lock(&mu_);
  return {.rebuilt_count = rebuilt_count_,
          .unproven_count = static_cast<uint32_t>(rebuild_.count()),
          .unproven = rebuild_.List(count_max),
          .old_copy = old_copy_,
          .redropped_count = redropped_count_};
}

absl::Status DirectoryState::CheckLatest(const Corpus& corpus) const {
  if (rebuild_.count() == 0) return absl::OkStatus();
  const CorpusKey key(corpus.tenant, corpus.name);
  // A corpus that was rebuilt from reports yields to any later report.
  const bool is_rebuilt = gaps_.Has(corpus.version);
  const uint64_t latest = rebuild_.HighestOf(key, is_rebuilt ? 0 : folder_id_);
  if (latest <= corpus.version) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "corpus \"%s\": version %d was published after version %d, which is all that this directory "
      "has of it: start the holders that have it, or load it with --replace, or drop it",
      corpus.name, latest, corpus.version));
}

// The tenant's own first, then the shared one of that name.
absl::Status DirectoryState::NoCorpusLocked(std::string_view name, std::string_view tenant) const {
  for (const std::string_view owner : {tenant, std::string_view()}) {
    const std::optional<UnprovenCorpus> unproven = rebuild_.Find(CorpusKey(owner, name));
    if (!unproven) continue;
    return absl::UnavailableError(absl::StrFormat(
        "corpus \"%s\" is not proven to be whole: holders report %d of its %d chunks%s", name,
        unproven->chunk_count - unproven->missing_count, unproven->chunk_count,
        unproven->conflict ? ", and contradict each other" : ""));
  }
  return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", name));
}

}  // namespace ckv
