// Changes of corpora: checked, made durable, applied. A replayed change is applied the same way.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"

namespace ckv {
namespace {

std::pair<std::string, std::string> KeyOf(const DirectoryChange& change) {
  if (change.kind == ChangeKind::kPublish) return {change.corpus->tenant, change.corpus->name};
  // No corpus has the empty name, so it can identify the tenant's key.
  return {change.tenant, change.name};
}

// A corpus that is known only from reports, as Drop returns it.
std::shared_ptr<const Corpus> AsCorpus(const UnprovenCorpus& unproven) {
  Corpus corpus;
  corpus.name = unproven.name;
  corpus.tenant = unproven.tenant;
  corpus.version = unproven.version;
  return std::make_shared<const Corpus>(std::move(corpus));
}

// Publishers of earlier builds send no token hashes. Keeps those that are known of their chunks.
void KeepPrints(const Corpus& before, Corpus& corpus) {
  absl::flat_hash_map<ChunkId, TokenPrint> known;  // made once chunks have other ordinals
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    ChunkPlacement& chunk = corpus.chunks[i];
    if (chunk.print != TokenPrint()) continue;
    if (i < before.chunks.size() && before.chunks[i].id == chunk.id) {
      chunk.print = before.chunks[i].print;
      continue;
    }
    if (known.empty()) {
      for (const ChunkPlacement& old : before.chunks) known.emplace(old.id, old.print);
    }
    if (const auto print = known.find(chunk.id); print != known.end()) chunk.print = print->second;
  }
}

}  // namespace

void DirectoryState::SetJournal(ChangeJournal* journal, uint64_t folder_id) {
  CKV_CHECK(journal != nullptr && folder_id != 0);
  journal_ = journal;
  StartLife(folder_id);
}

void DirectoryState::StartInMemory() { StartLife(life_); }

void DirectoryState::StartLife(uint64_t folder_id) {
  folder_id_ = folder_id;
  absl::MutexLock lock(&mu_);
  for (const auto& [holder, corpora] : placed_on_) missing_.insert(holder);
  first_version_ = last_version_;
  AddGap({applied_, last_version_});
  returning_until_ = options_.clock->Now() + options_.lease_ttl;
  rebuild_from_ = options_.clock->Now() + options_.rebuild_grace;
}

absl::Status DirectoryState::Replay(const DirectoryChange& change) {
  absl::MutexLock lock(&mu_);
  last_epoch_ = std::max(last_epoch_, change.epoch_max);
  epoch_max_ = std::max(epoch_max_, change.epoch_max);
  switch (change.kind) {
    case ChangeKind::kPublish:
    case ChangeKind::kDrop:
    case ChangeKind::kForget:
      break;
    case ChangeKind::kTenantKey:
      Apply(change, /*orphans=*/nullptr);
      return absl::OkStatus();
    case ChangeKind::kGap:
      gaps_.Add(change.gap);
      last_version_ = std::max(last_version_, change.gap.until);
      return absl::OkStatus();
    default:
      applied_ = std::max(applied_, change.version);
      last_version_ = std::max(last_version_, applied_);
      return absl::OkStatus();
  }
  const bool publishes = change.kind == ChangeKind::kPublish;
  const uint64_t version = publishes                            ? change.corpus->version
                           : change.kind == ChangeKind::kForget ? change.removed_version
                                                                : change.version;
  const CorpusKey key = KeyOf(change);
  const auto current = corpora_.find(key);
  const uint64_t before = current == corpora_.end() ? 0 : current->second->version;
  const bool removes = change.kind == ChangeKind::kDrop || change.removed_version != 0;
  if (publishes ? version <= before : removes && (version != before || before == 0)) {
    return absl::DataLossError(absl::StrFormat("corpus \"%s\": version %d is %s after version %d",
                                               key.second, version,
                                               publishes ? "published" : "dropped", before));
  }
  Apply(change, /*orphans=*/nullptr);
  last_version_ = std::max({last_version_, applied_, version});
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DirectoryState::Publish(Corpus corpus, bool replace,
                                                 uint64_t expected_version, Orphans* orphans,
                                                 Instant deadline) {
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    if (corpus.chunks[i].leased.empty()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus: chunk %d: the directory sets leased members: clear `leased` before you publish",
        i));
  }
  deadline = LatestOf(deadline);
  const auto pending = std::make_shared<Pending>();
  auto change = std::make_shared<DirectoryChange>();
  {
    absl::MutexLock lock(&mu_);
    const CorpusKey key(corpus.tenant, corpus.name);
    CKV_RETURN_IF_ERROR(AwaitTurn(key, deadline));
    ExpireLocked();
    CKV_RETURN_IF_ERROR(CheckPublish(corpus, replace, expected_version));
    const auto current = corpora_.find(key);
    const size_t freed = current == corpora_.end() ? 0 : current->second->chunks.size();
    pending->is_new = current == corpora_.end();
    if (!pending->is_new) KeepPrints(*current->second, corpus);
    pending->added_count = corpus.chunks.size() - std::min(freed, corpus.chunks.size());
    corpus.version = ++last_version_;
    pending->number = corpus.version;
    change->corpus = std::make_shared<const Corpus>(std::move(corpus));
    pending_.emplace(key, pending);
  }
  const uint64_t version = change->corpus->version;
  CKV_RETURN_IF_ERROR(Commit(std::move(change), pending.get(), deadline));
  if (orphans != nullptr) *orphans = std::move(pending->orphans);
  return version;
}

absl::Status DirectoryState::CheckPublish(const Corpus& corpus, bool replace,
                                          uint64_t expected_version) const {
  const auto current = corpora_.find(CorpusKey(corpus.tenant, corpus.name));
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
  uint64_t corpus_count = corpora_.size(), placement_count = placement_count_;
  for (const auto& [key, pending] : pending_) {
    corpus_count += pending->is_new ? 1 : 0;
    placement_count += pending->added_count;
  }
  if (!exists && corpus_count >= options_.corpus_count_max)
    return absl::ResourceExhaustedError(absl::StrFormat("%d corpora, limit reached", corpus_count));
  const uint64_t freed = exists ? current->second->chunks.size() : 0;
  const uint64_t room = options_.placement_count_max -
                        std::min(placement_count - freed, options_.placement_count_max);
  if (corpus.chunks.size() > room) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("corpus \"%s\": %d chunks, %d of %d are free", corpus.name,
                        corpus.chunks.size(), room, options_.placement_count_max));
  }
  return absl::OkStatus();
}

// Drops only the tenant's own corpus: a tenant that may read a shared corpus may not take it from
// the others. The answer is the one for a corpus that does not exist.
absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryState::Drop(std::string_view name,
                                                                   std::string_view tenant,
                                                                   Orphans* orphans,
                                                                   Instant deadline) {
  deadline = LatestOf(deadline);
  const CorpusKey key(tenant, name);
  const auto pending = std::make_shared<Pending>();
  auto change = std::make_shared<DirectoryChange>();
  std::shared_ptr<const Corpus> corpus;
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(AwaitTurn(key, deadline));
    ExpireLocked();
    const auto found = corpora_.find(key);
    const std::optional<UnprovenCorpus> unproven = rebuild_.Find(key);
    if (found == corpora_.end() && !unproven)
      return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", name));
    corpus = found != corpora_.end() ? found->second : AsCorpus(*unproven);
    change->kind = unproven ? ChangeKind::kForget : ChangeKind::kDrop;
    change->tenant = corpus->tenant;
    change->name = corpus->name;
    change->version = corpus->version;
    if (unproven) {
      // Drops everything that is reported under the name.
      change->version = std::max(corpus->version, unproven->version);
      change->removed_version = found != corpora_.end() ? corpus->version : 0;
    }
    change->number = ++last_version_;
    pending->number = change->number;
    pending_.emplace(key, pending);
  }
  CKV_RETURN_IF_ERROR(Commit(std::move(change), pending.get(), deadline));
  if (orphans != nullptr) *orphans = std::move(pending->orphans);
  return corpus;
}

absl::StatusOr<TenantKey> DirectoryState::TenantKeyOf(std::string_view tenant, bool make,
                                                      Instant deadline) {
  CKV_RETURN_IF_ERROR(ValidateName("tenant", tenant));
  // A key that is lost at a restart would leave chunks that no prompt finds any more.
  if (tenant.empty() || journal_ == nullptr) return TenantKey();
  deadline = LatestOf(deadline);
  const auto pending = std::make_shared<Pending>();
  auto change = std::make_shared<DirectoryChange>();
  {
    absl::MutexLock lock(&mu_);
    if (const auto known = keys_.Find(tenant)) return *known;
    if (!make) return TenantKey();
    const CorpusKey key(tenant, "");
    CKV_RETURN_IF_ERROR(AwaitTurn(key, deadline));
    if (const auto known = keys_.Find(tenant)) return *known;
    if (keys_.size() >= TenantKeys::kTenantKeyCountMax)
      return absl::ResourceExhaustedError(absl::StrFormat("%d tenants have keys", keys_.size()));
    change->kind = ChangeKind::kTenantKey;
    change->tenant = std::string(tenant);
    change->key = RandomTenantKey();
    pending->number = last_version_ + 1;  // it has none
    pending_.emplace(key, pending);
  }
  CKV_RETURN_IF_ERROR(Commit(change, pending.get(), deadline));
  return change->key;
}

absl::Status DirectoryState::AwaitTurn(const CorpusKey& key, Instant deadline) {
  const auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !pending_.contains(key); };
  if (options_.clock->Await(mu_, absl::Condition(&is_free), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("corpus \"%s\": an earlier change of it is still not durable", key.second));
}

void DirectoryState::SubmitOrSettle(const std::shared_ptr<const DirectoryChange>& change) {
  if (journal_ == nullptr) return Settle(*change, absl::OkStatus());
  std::vector<VersionGap> gaps;
  {
    absl::MutexLock lock(&mu_);
    gaps.swap(unsaved_gaps_);
  }
  absl::Status submitted;
  for (const VersionGap& gap : gaps) {
    const auto record = std::make_shared<DirectoryChange>();
    record->kind = ChangeKind::kGap;
    record->gap = gap;
    submitted.Update(journal_->Submit(record));
    if (!submitted.ok()) Settle(*record, submitted);
  }
  submitted.Update(submitted.ok() ? journal_->Submit(change) : submitted);
  if (!submitted.ok()) Settle(*change, submitted);
}

absl::Status DirectoryState::Commit(std::shared_ptr<const DirectoryChange> change,
                                    const Pending* pending, Instant deadline) {
  SubmitOrSettle(change);
  absl::MutexLock lock(&mu_);
  if (options_.clock->Await(mu_, absl::Condition(&pending->is_settled), deadline))
    return pending->status;
  return absl::DeadlineExceededError(
      "the change is not durable yet and may become so: look whether it was made");
}

void DirectoryState::Settle(const DirectoryChange& change, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (change.kind == ChangeKind::kEpochs) return SettleEpochs(change.epoch_max, status);
  if (change.kind == ChangeKind::kGap) {
    // The gap is saved before the next change.
    if (!status.ok()) unsaved_gaps_.push_back(change.gap);
    return;
  }
  const auto place = pending_.find(KeyOf(change));
  CKV_CHECK(place != pending_.end());
  const std::shared_ptr<Pending> pending = place->second;
  pending_.erase(place);
  if (status.ok()) Apply(change, &pending->orphans);
  if (status.ok() && pending->is_rebuilt) ++rebuilt_count_;
  pending->status = status;
  pending->is_settled = true;
}

void DirectoryState::Apply(const DirectoryChange& change, Orphans* orphans) {
  if (change.kind == ChangeKind::kTenantKey) {
    keys_.Add(change.tenant, change.key);
    return;
  }
  const bool publishes = change.kind == ChangeKind::kPublish;
  const CorpusKey key = KeyOf(change);
  const auto current = corpora_.find(key);
  const bool removes = publishes || change.kind == ChangeKind::kDrop || change.removed_version != 0;
  const std::shared_ptr<const Corpus> gone =
      current == corpora_.end() || !removes ? nullptr : current->second;
  if (gone != nullptr) RemovePlaces(*gone);
  if (publishes) AddPlaces(change.corpus);
  if (gone != nullptr) {
    if (orphans != nullptr) *orphans = OrphansOf(*gone);
    RemoveReplicas(*gone);
  }
  // The version of a corpus that was rebuilt does not show that earlier changes are here.
  const bool is_rebuilt = publishes && gaps_.Has(change.corpus->version);
  if (!is_rebuilt)
    applied_ = std::max(applied_, publishes ? change.corpus->version : change.number);
  if (publishes) {
    // Reports of it are no longer needed.
    rebuild_.Forget(key, change.corpus->version, /*folder_id=*/0);
    corpora_.insert_or_assign(key, change.corpus);
    Tell({.kind = DirectoryEvent::Kind::kCorpusPublished, .member = {}, .corpus = change.corpus});
    return;
  }
  ApplyDrop(change);
  TellOfDrop(gone.get());
  if (gone == nullptr) return;
  corpora_.erase(current);
  Tell({.kind = DirectoryEvent::Kind::kCorpusDropped, .member = {}, .corpus = gone});
}

DirectoryImage DirectoryState::Image() {
  absl::MutexLock lock(&mu_);
  DirectoryImage image;
  image.corpora.reserve(corpora_.size());
  for (const auto& [key, corpus] : corpora_) image.corpora.push_back(corpus);
  image.gaps = gaps_.all();
  image.dropped = dropped_.All();
  image.keys = keys_.All();
  image.version = applied_;
  image.epoch_max = std::max(epoch_max_, last_epoch_);
  return image;
}

}  // namespace ckv
