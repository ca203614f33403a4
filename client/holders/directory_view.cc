// The cache of the directory's answers. A lookup, in order: Find returns the snapshot if it is not
// doubted; else the directory is queried without a lock; Take keeps the answer, and the previous
// snapshot if both are equal or the directory is unreachable. An answer that began before an
// Invalidate is not kept (generation). Members are kept the same way. AwaitChange lets a call wait
// for news of a member: Note and Wake end the wait. Any thread.

#include "client/holders/directory_view.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"
#include "proto/base/xxh3.h"

namespace ckv {
namespace {

// Names hold no NUL (ValidateCorpus), so the two kinds of key and their parts cannot be confused.
std::string CorpusKey(std::string_view name, std::string_view tenant) {
  std::string key("n\0", 2);
  key.append(name).push_back('\0');
  key.append(tenant);
  return key;
}

std::string ChunksKey(std::span<const ChunkId> ids, const Geometry& geometry,
                      std::string_view tenant) {
  // A hash of the ids; a snapshot that is found by the hash is compared with the ids.
  const XXH128_hash_t hash = XXH3_128bits(ids.data(), ids.size_bytes());
  std::string key("i\0", 2);
  key.append(tenant).push_back('\0');
  key.append(ModelFingerprint(geometry).AsBytes());
  key.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return key;
}

// Whether the directory did not answer.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// Whether a holder must be queried again: it is another incarnation, or has another address.
bool IsElsewhere(const Member& before, const Member& now) {
  return before.epoch != now.epoch || before.control_address != now.control_address;
}

bool HasChunks(const Corpus& corpus, std::span<const ChunkId> ids) {
  return std::equal(ids.begin(), ids.end(), corpus.chunks.begin(), corpus.chunks.end(),
                    [](const ChunkId& id, const ChunkPlacement& chunk) { return id == chunk.id; });
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryView::Resolve(std::string_view name,
                                                                     std::string_view tenant,
                                                                     Instant deadline) {
  const std::string key = CorpusKey(name, tenant);
  const Snapshot kept = Find(key);
  if (kept.corpus != nullptr && !kept.doubtful) return kept.corpus;
  const uint64_t before = generation();
  absl::StatusOr<Corpus> answer;
  const auto query = [&] {
    answer = directory_->GetCorpus(name, tenant, deadline);
    return answer.status();
  };
  (kept.corpus == nullptr ? QueryPatiently(deadline, query) : query()).IgnoreError();
  if (!answer.ok()) {
    answer = Annotate(answer.status(), absl::StrFormat("corpus '%s'", name));
  } else if (absl::Status status = ValidateCorpus(*answer); !status.ok()) {
    return Annotate(status, "the directory's answer");
  } else {
    HearOfHolders(*answer, deadline);
  }
  return Take(key, kept, std::move(answer), before);
}

std::shared_ptr<const Corpus> DirectoryView::Kept(std::string_view name, std::string_view tenant) {
  Snapshot kept = Find(CorpusKey(name, tenant));
  return kept.doubtful ? nullptr : std::move(kept.corpus);
}

absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryView::ResolveChunks(
    std::span<const ChunkId> ids, const Geometry& geometry, std::string_view tenant,
    Instant deadline) {
  if (ids.empty() || ids.size() > kCorpusChunkCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d chunks named, 1 to %d can be", ids.size(), kCorpusChunkCountMax));
  }
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  const std::string key = ChunksKey(ids, geometry, tenant);
  Snapshot kept = Find(key);
  if (kept.corpus != nullptr && !HasChunks(*kept.corpus, ids)) kept = {};
  if (kept.corpus != nullptr && !kept.doubtful) return kept.corpus;
  const uint64_t before = generation();
  absl::StatusOr<Corpus> answer;
  const auto query = [&] {
    answer = ReadChunks(ids, geometry, tenant, deadline);
    return answer.status();
  };
  (kept.corpus == nullptr ? QueryPatiently(deadline, query) : query()).IgnoreError();
  if (answer.ok()) HearOfHolders(*answer, deadline);
  return Take(key, kept, std::move(answer), before);
}

void DirectoryView::HearOfHolders(const Corpus& corpus, Instant deadline) {
  // Without an answer the holders' targets stay unknown until one of them is connected to.
  if (!KnowsHolders(corpus)) ListHolders(deadline).IgnoreError();
}

bool DirectoryView::KnowsHolders(const Corpus& corpus) const {
  absl::MutexLock lock(&mu_);
  if (!members_listed_) return false;
  const ChunkPlacement* last = nullptr;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    // Neighbours mostly have the same holders.
    if (last != nullptr && last->HasMembersOf(chunk)) continue;
    last = &chunk;
    for (const std::vector<HolderId>* const ids : {&chunk.holders(), &chunk.leased()}) {
      for (const HolderId& id : *ids) {
        if (!members_.contains(id)) return false;
      }
    }
  }
  return true;
}

absl::StatusOr<Corpus> DirectoryView::ReadChunks(std::span<const ChunkId> ids,
                                                 const Geometry& geometry, std::string_view tenant,
                                                 Instant deadline) {
  Corpus corpus;
  corpus.tenant = std::string(tenant);
  corpus.geometry = geometry;
  CKV_ASSIGN_OR_RETURN(corpus.chunks, directory_->LocateChunks(ids, geometry, tenant, deadline));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (corpus.chunks.size() != ids.size() || corpus.chunks[i].id != ids[i])
      return absl::InvalidArgumentError("the directory's answer has other chunks");
  }
  return corpus;
}

absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryView::Take(const std::string& key,
                                                                  const Snapshot& kept,
                                                                  absl::StatusOr<Corpus> answer,
                                                                  uint64_t generation) {
  if (!answer.ok()) {
    if (IsAway(answer.status()) && kept.corpus != nullptr) return kept.corpus;
    return answer.status();
  }
  // An answer that equals the last one keeps its snapshot: links and handles are kept by snapshot.
  auto snapshot = kept.corpus;
  if (snapshot == nullptr || *snapshot != *answer) {
    {
      absl::MutexLock lock(&sharing_mu_);
      sharing_.AddAll(answer->chunks);
    }
    snapshot = std::make_shared<const Corpus>(*std::move(answer));
  }
  Keep(key, snapshot, generation);
  return snapshot;
}

absl::StatusOr<TenantKey> DirectoryView::TenantKeyOf(std::string_view tenant, Instant deadline) {
  if (tenant.empty()) return TenantKey();
  uint64_t before = 0;
  std::optional<TenantKey> doubtful;
  {
    absl::MutexLock lock(&mu_);
    before = generation_;
    if (const auto kept = keys_.find(std::string(tenant)); kept != keys_.end()) {
      if (!kept->second.doubtful) return kept->second.key;
      doubtful = kept->second.key;
    }
  }
  const auto key = directory_->TenantKeyOf(tenant, deadline);
  if (doubtful && IsAway(key.status())) return *doubtful;
  if (!key.ok()) return key.status();
  absl::MutexLock lock(&mu_);
  if (key->IsZero() || generation_ != before) return *key;
  if (keys_.size() >= kKeptTenantKeyCountMax) keys_.clear();
  keys_.insert_or_assign(std::string(tenant), KeptKey{.key = *key});
  return *key;
}

absl::StatusOr<PromptMatch> DirectoryView::MatchPrompt(const PromptCall& call) {
  absl::StatusOr<PromptMatch> match;
  const auto query = [&]() -> absl::Status {
    std::vector<TenantKey> keys;
    CKV_ASSIGN_OR_RETURN(const TenantKey key, TenantKeyOf(call.tenant, call.deadline));
    if (!key.IsZero()) keys.push_back(key);
    keys.push_back(TenantKey());  // chunks that all tenants share
    const auto find = [&](std::span<const uint64_t> heads) {
      return directory_->FindPrompt(heads, call.model, call.tenant, call.deadline);
    };
    match = ckv::MatchPrompt(call.tokens, keys, find, call.extra_keys);
    return match.status();
  };
  CKV_RETURN_IF_ERROR(QueryPatiently(call.deadline, query));
  return match;
}

absl::Status DirectoryView::QueryPatiently(Instant deadline,
                                           absl::FunctionRef<absl::Status()> query) const {
  const Instant end = ReturnWaitEnd(clock_->Now(), deadline);
  for (Duration pause = kReturnPauseMin;; pause = std::min(2 * pause, kReturnPauseMax)) {
    absl::Status status = query();
    const Instant now = clock_->Now();
    if (!IsAway(status) || now >= end) return status;
    clock_->WaitUntil(std::min(now + pause, end));
  }
}

void DirectoryView::Invalidate(std::string_view name) {
  absl::MutexLock lock(&mu_);
  ++generation_;
  ++changes_;
  if (name.empty()) {
    for (auto& [key, kept] : kept_) kept.doubtful = true;
    for (auto& [tenant, kept] : keys_) kept.doubtful = true;
    members_listed_ = false;
    return;
  }
  for (auto it = kept_.begin(); it != kept_.end();) {
    const auto here = it++;
    const Corpus& corpus = *here->second.corpus;
    if (corpus.name != name && !corpus.name.empty()) continue;
    kept_chunk_count_ -= corpus.chunks.size();
    kept_.erase(here);
  }
}

void DirectoryView::Invalidate(const Corpus& corpus) {
  absl::MutexLock lock(&mu_);
  ++generation_;
  for (auto it = kept_.begin(); it != kept_.end();) {
    const auto here = it++;
    if (here->second.corpus.get() != &corpus) continue;
    kept_chunk_count_ -= corpus.chunks.size();
    kept_.erase(here);
  }
}

void DirectoryView::Doubt(const Corpus& corpus) {
  absl::MutexLock lock(&mu_);
  for (auto& [key, kept] : kept_) {
    if (kept.corpus.get() == &corpus) kept.doubtful = true;
  }
}

absl::StatusOr<absl::flat_hash_map<HolderId, Member>> DirectoryView::ListHolders(Instant deadline) {
  auto members = directory_->ListMembers(deadline);
  if (!members.ok()) return Annotate(members.status(), "listing the members");
  absl::flat_hash_map<HolderId, Member> holders;
  for (Member& member : *members) {
    if (member.role != MemberRole::kHolder || holders.size() >= kMemberCountMax) continue;
    holders.insert_or_assign(member.id, std::move(member));
  }
  absl::MutexLock lock(&mu_);
  bool changed = false;
  for (auto& [id, member] : holders) {
    const auto known = members_.find(id);
    // A watch may have reported a later incarnation while the list was in transit.
    if (known != members_.end() && known->second.epoch.value > member.epoch.value)
      member = known->second;
    changed |= known == members_.end() || IsElsewhere(known->second, member);
  }
  changes_ += changed ? 1 : 0;
  members_ = holders;
  members_listed_ = true;
  member_news_.fetch_add(1, std::memory_order_release);
  return holders;
}

void DirectoryView::Note(const Member& member) {
  if (member.role != MemberRole::kHolder) return;
  absl::MutexLock lock(&mu_);
  const auto known = members_.find(member.id);
  if (known == members_.end()) {
    if (members_.size() >= kMemberCountMax) return;
    members_.emplace(member.id, member);
    ++changes_;
  } else {
    if (member.epoch.value < known->second.epoch.value) return;
    changes_ += IsElsewhere(known->second, member) ? 1 : 0;
    known->second = member;
  }
  member_news_.fetch_add(1, std::memory_order_release);
}

absl::flat_hash_map<HolderId, Member> DirectoryView::KnownHolders() const {
  absl::MutexLock lock(&mu_);
  return members_;
}

absl::StatusOr<Member> DirectoryView::FindMember(const HolderId& id, bool refresh,
                                                 Instant deadline) {
  std::optional<Member> kept;
  if (!refresh) {
    absl::MutexLock lock(&mu_);
    const auto it = members_.find(id);
    if (it != members_.end()) kept = it->second;
    if (kept && members_listed_) return *kept;
  }
  const auto holders = ListHolders(deadline);
  if (kept && IsAway(holders.status())) return *kept;
  if (!holders.ok()) return holders.status();
  const auto it = holders->find(id);
  if (it == holders->end()) {
    return absl::UnavailableError(
        absl::StrFormat("holder '%s' is not registered with the directory", id.name));
  }
  return it->second;
}

bool DirectoryView::Keeps(const Corpus& corpus) const {
  absl::MutexLock lock(&mu_);
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const auto& kept) { return kept.second.corpus.get() == &corpus; });
}

uint64_t DirectoryView::changes() const {
  absl::MutexLock lock(&mu_);
  return changes_;
}

void DirectoryView::AwaitChange(uint64_t seen, Instant until) const {
  absl::MutexLock lock(&mu_);
  const auto changed = [this, seen]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return changes_ != seen; };
  clock_->Await(mu_, absl::Condition(&changed), until);
}

void DirectoryView::Wake() {
  absl::MutexLock lock(&mu_);
  ++changes_;
}

DirectoryView::Snapshot DirectoryView::Find(const std::string& key) {
  absl::MutexLock lock(&mu_);
  const auto it = kept_.find(key);
  return it == kept_.end() ? Snapshot() : it->second;
}

void DirectoryView::Keep(const std::string& key, std::shared_ptr<const Corpus> corpus,
                         uint64_t generation) {
  absl::MutexLock lock(&mu_);
  if (generation != generation_) return;
  if (kept_.size() >= kKeptCorpusCountMax ||
      kept_chunk_count_ + corpus->chunks.size() > kKeptChunkCountMax) {
    kept_.clear();
    kept_chunk_count_ = 0;
  }
  const size_t chunk_count = corpus->chunks.size();
  Snapshot& place = kept_[key];
  if (place.corpus != nullptr) kept_chunk_count_ -= place.corpus->chunks.size();
  place = {std::move(corpus), false};
  kept_chunk_count_ += chunk_count;
}

uint64_t DirectoryView::generation() {
  absl::MutexLock lock(&mu_);
  return generation_;
}

}  // namespace ckv
