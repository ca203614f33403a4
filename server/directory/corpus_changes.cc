// In this order: what a publication or a drop consists of, then one change of a corpus. One change
// waits for its turn, is checked, gets its number and is added to the pending changes under the
// lock, and is then committed without it.

#include "server/directory/corpus_changes.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/directory/corpus_policy.h"

namespace ckv {
namespace {

// A corpus that is known only from reports, as Drop returns it.
std::shared_ptr<const Corpus> AsCorpus(const UnprovenCorpus& unproven) {
  Corpus corpus;
  corpus.name = unproven.name;
  corpus.tenant = unproven.tenant;
  corpus.version = unproven.version;
  return std::make_shared<const Corpus>(std::move(corpus));
}

// A corpus may have no token hashes. Keeps those that are known of its chunks.
void KeepTokenHashes(const Corpus& before, Corpus& corpus) {
  absl::flat_hash_map<ChunkId, TokenHash> known;  // made once chunks have other ordinals
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    ChunkPlacement& chunk = corpus.chunks[i];
    if (chunk.token_hash() != TokenHash()) continue;
    if (i < before.chunks.size() && before.chunks[i].id == chunk.id) {
      chunk.set_token_hash(before.chunks[i].token_hash());
      continue;
    }
    if (known.empty()) {
      for (const ChunkPlacement& old : before.chunks) known.emplace(old.id, old.token_hash());
    }
    if (const auto token_hash = known.find(chunk.id); token_hash != known.end())
      chunk.set_token_hash(token_hash->second);
  }
}

// Returns the largest number of holders that a chunk lists.
uint32_t MostHolders(const Corpus& corpus) {
  size_t most = 0;
  for (const ChunkPlacement& chunk : corpus.chunks) most = std::max(most, chunk.holders().size());
  return static_cast<uint32_t>(most);
}

absl::Status CheckPublication(const Corpus& corpus, bool replace) {
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    if (corpus.chunks[i].leased().empty()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus: chunk %d: the directory sets leased members: clear `leased` before you publish",
        i));
  }
  if (!replace && ParseVersionName(corpus.name)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus: name: \"%s\" is the name of an earlier version: use one without '@'",
        corpus.name));
  }
  return absl::OkStatus();
}

void Append(CorpusChanges::Orphans more, CorpusChanges::Orphans* orphans) {
  if (orphans == nullptr) return;
  orphans->insert(orphans->end(), std::make_move_iterator(more.begin()),
                  std::make_move_iterator(more.end()));
}

}  // namespace

absl::StatusOr<uint64_t> CorpusChanges::Publish(Corpus corpus, bool replace,
                                                uint64_t expected_version, Orphans* orphans,
                                                Instant deadline) {
  CKV_RETURN_IF_ERROR(CheckPublication(corpus, replace));
  deadline = tables_.LatestOf(deadline);
  const CorpusKey key = KeyOf(corpus);
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Corpus> kept,
                       VersionToKeep(corpus, replace, expected_version));
  Orphans left;
  absl::StatusOr<uint64_t> version =
      kept == nullptr
          ? PublishOne(std::move(corpus), replace, expected_version, &left, deadline)
          : PublishOver(std::move(kept), corpus, replace, expected_version, &left, deadline);
  if (!version.ok()) return version;
  uint32_t count = 0;
  {
    absl::MutexLock lock(&tables_.mu);
    const std::shared_ptr<const Corpus> current = tables_.corpora.Find(key);
    // If it was dropped or replaced meanwhile, that call sees to the versions.
    const bool is_current = current != nullptr && current->version == *version;
    count = is_current ? current->policy.kept_version_count.value_or(0) : kKeptVersionCountMax;
  }
  DropOldVersions(key, count, &left, deadline);
  if (orphans != nullptr) *orphans = std::move(left);
  return version;
}

absl::StatusOr<uint64_t> CorpusChanges::PublishOver(std::shared_ptr<const Corpus> kept,
                                                    const Corpus& next, bool replace,
                                                    uint64_t expected_version, Orphans* orphans,
                                                    Instant deadline) {
  for (uint32_t attempt = 1;; ++attempt) {
    // Only the version that was kept may be replaced.
    CKV_RETURN_IF_ERROR(Keep(*kept, deadline));
    absl::StatusOr<uint64_t> version = PublishOne(next, replace, kept->version, orphans, deadline);
    const bool was_slower =
        absl::IsFailedPrecondition(version.status()) && kept->version != expected_version;
    if (!was_slower || attempt == kAttemptCountMax) return version;
    CKV_ASSIGN_OR_RETURN(kept, VersionToKeep(next, replace, expected_version));
    if (kept == nullptr) return PublishOne(next, replace, expected_version, orphans, deadline);
  }
}

absl::StatusOr<std::shared_ptr<const Corpus>> CorpusChanges::VersionToKeep(
    const Corpus& next, bool replace, uint64_t expected_version) {
  std::shared_ptr<const Corpus> current;
  {
    absl::MutexLock lock(&tables_.mu);
    current = tables_.corpora.Find(KeyOf(next));
    if (current == nullptr) return nullptr;
    const uint32_t count =
        next.policy.kept_version_count.value_or(current->policy.kept_version_count.value_or(0));
    if (count == 0) return nullptr;
    // A publication that will be refused keeps nothing.
    CKV_RETURN_IF_ERROR(tables_.CheckPublish(next, replace, expected_version));
  }
  const uint64_t quota = next.policy.quota_bytes.value_or(current->policy.quota_bytes.value_or(0));
  CKV_RETURN_IF_ERROR(CheckQuota(next.name, next.row_bytes(), quota));
  return LacksChunks(*current, next) ? current : nullptr;
}

absl::Status CorpusChanges::Keep(const Corpus& current, Instant deadline) {
  Corpus kept = KeptVersionFrom(current);
  CKV_RETURN_IF_ERROR(ValidateCorpusName("corpus: the name of a kept version", kept.name));
  const absl::Status status = PublishOne(std::move(kept), /*replace=*/false,
                                         /*expected_version=*/0, nullptr, deadline)
                                  .status();
  // An earlier attempt kept it.
  return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

void CorpusChanges::DropOldVersions(const CorpusKey& key, uint32_t count, Orphans* orphans,
                                    Instant deadline) {
  std::vector<std::shared_ptr<const Corpus>> versions;
  {
    absl::MutexLock lock(&tables_.mu);
    versions = KeptVersionsOf(tables_.corpora.all(), key);
  }
  for (size_t i = count; i < versions.size(); ++i) {
    Orphans left;
    // Whatever its number is by now: another place of a chunk is a new one.
    const absl::Status status =
        DropOne(KeyOf(*versions[i]), /*version=*/0, &left, deadline).status();
    if (status.ok()) {
      Append(std::move(left), orphans);
    } else if (!absl::IsNotFound(status)) {
      Log().warn(
          "corpus \"{}\" is an old version and was not dropped; the next publication tries "
          "again: {}",
          versions[i]->name, std::string(status.message()));
    }
  }
}

// Drops only the tenant's own corpus: a tenant that may read a shared corpus may not take it from
// the others. The answer is the one for a corpus that does not exist.
absl::StatusOr<std::shared_ptr<const Corpus>> CorpusChanges::Drop(std::string_view name,
                                                                  std::string_view tenant,
                                                                  Orphans* orphans,
                                                                  Instant deadline) {
  const CorpusKey key(tenant, name);
  if (orphans != nullptr) orphans->clear();
  bool is_here = false;
  {
    absl::MutexLock lock(&tables_.mu);
    is_here = tables_.corpora.Find(key) != nullptr;
  }
  // Earlier versions first: as long as one is here, the corpus is, and can be dropped again.
  if (is_here) DropOldVersions(key, 0, orphans, deadline);
  Orphans left;
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Corpus> corpus,
                       DropOne(key, /*version=*/0, &left, deadline));
  Append(std::move(left), orphans);
  return corpus;
}

std::vector<std::pair<CorpusKey, uint64_t>> CorpusChanges::Expired() {
  std::vector<std::pair<CorpusKey, uint64_t>> ended;
  absl::MutexLock lock(&tables_.mu);
  if (!tables_.lead.Leads()) return ended;
  const uint64_t now_ms = tables_.options.wall_clock_ms();
  for (const auto& [key, corpus] : tables_.corpora.all()) {
    const uint64_t at_ms = corpus->policy.expires_at_ms;
    if (at_ms != 0 && at_ms <= now_ms) ended.emplace_back(key, corpus->version);
  }
  return ended;
}

void CorpusChanges::DropExpired() {
  const Instant now = tables_.options.clock->Now();
  if (now < next_look_) return;
  next_look_ = now + kExpiryLookPeriod;
  std::map<std::pair<CorpusKey, uint64_t>, Instant> drop_at;
  size_t count = 0;
  for (const auto& corpus : Expired()) {
    const auto known = drop_at_.find(corpus);
    const Instant due =
        known == drop_at_.end() ? now + tables_.options.expiry_grace : known->second;
    Instant& at = drop_at.emplace(corpus, due).first->second;
    if (now < at || count == kExpiredPerCallMax) continue;
    ++count;
    at = now + kExpiryRetryPause;
    const auto& [key, version] = corpus;
    const auto pending = std::make_shared<PendingChange>();
    absl::StatusOr<BegunDrop> drop;
    {
      absl::MutexLock lock(&tables_.mu);
      if (tables_.pending.Has(key)) continue;
      drop = BeginDrop(key, version, pending);
    }
    if (!drop.ok()) continue;
    Log().info("corpus \"{}\" is dropped: its time to live has ended", key.second);
    changes_.Submit(drop->change);
  }
  drop_at_ = std::move(drop_at);
}

absl::StatusOr<uint64_t> CorpusChanges::PublishOne(Corpus corpus, bool replace,
                                                   uint64_t expected_version, Orphans* orphans,
                                                   Instant deadline) {
  if (corpus.replica_count == 0) corpus.replica_count = MostHolders(corpus);
  deadline = tables_.LatestOf(deadline);
  const auto pending = std::make_shared<PendingChange>();
  auto change = std::make_shared<DirectoryChange>();
  {
    absl::MutexLock lock(&tables_.mu);
    const CorpusKey key = KeyOf(corpus);
    CKV_RETURN_IF_ERROR(tables_.AwaitTurn(key, deadline));
    CKV_RETURN_IF_ERROR(tables_.lead.Check());
    tables_.Expire();
    CKV_RETURN_IF_ERROR(tables_.CheckPublish(corpus, replace, expected_version));
    const std::shared_ptr<const Corpus> current = tables_.corpora.Find(key);
    SettlePolicy(current.get(), tables_.options.wall_clock_ms(), corpus);
    CKV_RETURN_IF_ERROR(
        CheckQuota(corpus.name, corpus.row_bytes(), corpus.policy.quota_bytes.value_or(0)));
    const size_t freed = current == nullptr ? 0 : current->chunks.size();
    pending->is_new = current == nullptr;
    if (current != nullptr) KeepTokenHashes(*current, corpus);
    pending->added_count = corpus.chunks.size() - std::min(freed, corpus.chunks.size());
    corpus.version = tables_.numbers.Next();
    pending->number = corpus.version;
    change->corpus = std::make_shared<const Corpus>(std::move(corpus));
    tables_.AddPending(key, pending);
  }
  const uint64_t version = change->corpus->version;
  CKV_RETURN_IF_ERROR(changes_.Commit(std::move(change), pending.get(), deadline));
  if (orphans != nullptr) *orphans = std::move(pending->orphans);
  return version;
}

absl::StatusOr<CorpusChanges::BegunDrop> CorpusChanges::BeginDrop(
    const CorpusKey& key, uint64_t version, const std::shared_ptr<PendingChange>& pending) {
  CKV_RETURN_IF_ERROR(tables_.lead.Check());
  tables_.Expire();
  const std::shared_ptr<const Corpus> here = tables_.corpora.Find(key);
  const std::optional<UnprovenCorpus> unproven = tables_.reports.Find(key);
  if (here == nullptr && !unproven)
    return absl::NotFoundError(absl::StrFormat("there is no corpus \"%s\" here", key.second));
  if (version != 0 && (here == nullptr || here->version != version)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("corpus \"%s\": version %d is not current", key.second, version));
  }
  auto change = std::make_shared<DirectoryChange>();
  const std::shared_ptr<const Corpus> corpus = here != nullptr ? here : AsCorpus(*unproven);
  change->kind = unproven ? ChangeKind::kForget : ChangeKind::kDrop;
  change->tenant = key.first;
  change->name = key.second;
  change->version = corpus->version;
  if (unproven) {
    // Drops everything that is reported under the name.
    change->version = std::max(change->version, unproven->version);
    change->removed_version = here != nullptr ? here->version : 0;
  }
  change->number = tables_.numbers.Next();
  pending->number = change->number;
  tables_.AddPending(key, pending);
  return BegunDrop{std::move(change), corpus};
}

absl::StatusOr<std::shared_ptr<const Corpus>> CorpusChanges::DropOne(const CorpusKey& key,
                                                                     uint64_t version,
                                                                     Orphans* orphans,
                                                                     Instant deadline) {
  deadline = tables_.LatestOf(deadline);
  const auto pending = std::make_shared<PendingChange>();
  BegunDrop drop;
  {
    absl::MutexLock lock(&tables_.mu);
    CKV_RETURN_IF_ERROR(tables_.AwaitTurn(key, deadline));
    CKV_ASSIGN_OR_RETURN(drop, BeginDrop(key, version, pending));
  }
  CKV_RETURN_IF_ERROR(changes_.Commit(drop.change, pending.get(), deadline));
  if (orphans != nullptr) *orphans = std::move(pending->orphans);
  return drop.corpus;
}

}  // namespace ckv
