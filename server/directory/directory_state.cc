#include "server/directory/directory_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A tenant sees its own corpora and the shared ones (I6).
bool Visible(const Corpus& corpus, std::string_view tenant) {
  return corpus.tenant.empty() || corpus.tenant == tenant;
}

}  // namespace

DirectoryState::Counts DirectoryState::counts() {
  absl::MutexLock lock(&mu_);
  return {.corpus_count = corpora_.size(),
          .placement_count = placement_count_,
          .watcher_count = watchers_.size(),
          .replica_count = replicas_.replica_count()};
}

ReplicaTable::Places DirectoryState::PlacesOf(const ChunkId& id) const {
  const auto places = places_.find(id);
  if (places == places_.end()) return {};
  return places->second;
}

void DirectoryState::AddPlaces(const std::shared_ptr<const Corpus>& corpus) {
  for (uint32_t i = 0; i < corpus->chunks.size(); ++i) {
    places_[corpus->chunks[i].id].push_back({.corpus = corpus, .ordinal = i});
  }
  CountPlaces(*corpus, /*in=*/true);
  placement_count_ += corpus->chunks.size();
  replicas_.AddCorpus(*corpus);
  heads_.Add(*corpus);
}

// Adjacent chunks mostly have the same holders.
void DirectoryState::CountPlaces(const Corpus& corpus, bool in) {
  const CorpusKey key(corpus.tenant, corpus.name);
  absl::btree_set<HolderId> told;
  for (size_t begin = 0; begin < corpus.chunks.size();) {
    const std::vector<HolderId>& holders = corpus.chunks[begin].holders;
    size_t end = begin + 1;
    while (end < corpus.chunks.size() && corpus.chunks[end].holders == holders) ++end;
    for (const HolderId& holder : holders) {
      told.insert(holder);
      auto& counts = placed_on_[holder];
      uint64_t& count = counts[key];
      count = in ? count + (end - begin) : count - (end - begin);
      if (count == 0) counts.erase(key);
      if (counts.empty()) placed_on_.erase(holder);
    }
    begin = end;
  }
  for (const HolderId& holder : told) NotePlacedChange(holder);
}

void DirectoryState::NotePlacedChange(const HolderId& holder) {
  const auto lease = lease_by_member_.find(holder);
  if (lease != lease_by_member_.end()) ++leases_.find(lease->second)->second.placed_change_count;
}

void DirectoryState::RemovePlaces(const Corpus& corpus) {
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const auto places = places_.find(chunk.id);
    if (places == places_.end()) continue;  // a chunk that the corpus names twice
    std::erase_if(places->second,
                  [&](const ChunkPlace& place) { return place.corpus.get() == &corpus; });
    if (places->second.empty()) places_.erase(places);
  }
  CountPlaces(corpus, /*in=*/false);
  placement_count_ -= corpus.chunks.size();
  replicas_.RemoveCorpus(corpus);
  heads_.Remove(corpus);
}

void DirectoryState::RemoveReplicas(const Corpus& gone) {
  for (const ChunkPlacement& chunk : gone.chunks) {
    if (!places_.contains(chunk.id)) replicas_.RemoveChunk(chunk.id);
  }
}

DirectoryState::Orphans DirectoryState::OrphansOf(const Corpus& gone) const {
  Orphans orphans;
  for (const ChunkPlacement& chunk : gone.chunks) {
    // It may be all that is left of a corpus that is not whole yet.
    if (rebuild_.CountOf(chunk.id) > 0) continue;
    ChunkPlacement orphan = chunk;
    if (const auto places = places_.find(chunk.id); places != places_.end()) {
      for (const ChunkPlace& place : places->second) {
        const std::vector<HolderId>& wanted = place.corpus->chunks[place.ordinal].holders;
        std::erase_if(orphan.holders, [&](const HolderId& holder) {
          return std::find(wanted.begin(), wanted.end(), holder) != wanted.end();
        });
      }
    } else {
      orphan.leased = replicas_.LeasedOf(gone, chunk);
    }
    if (!orphan.holders.empty() || !orphan.leased.empty()) orphans.push_back(std::move(orphan));
  }
  return orphans;
}

// The tenant's own first, then the shared one of that name.
std::shared_ptr<const Corpus> DirectoryState::FindLocked(std::string_view name,
                                                         std::string_view tenant) {
  for (const std::string_view owner : {tenant, std::string_view()}) {
    const auto found = corpora_.find(CorpusKey(owner, name));
    if (found != corpora_.end()) return found->second;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const Corpus>> DirectoryState::Get(std::string_view name,
                                                                  std::string_view tenant,
                                                                  bool for_calls) {
  std::shared_ptr<const Corpus> corpus;
  std::vector<ReplicaTable::Leased> leased;
  CoverageView::Holders holders;
  {
    absl::MutexLock lock(&mu_);
    ExpireLocked();
    corpus = FindLocked(name, tenant);
    if (corpus == nullptr) return NoCorpusLocked(name, tenant);
    CKV_RETURN_IF_ERROR(CheckLatest(*corpus));
    leased = replicas_.LeasedOf(*corpus);
    if (for_calls) holders = HoldersOf(*corpus);
  }
  if (leased.empty() && holders.lacking.empty()) return corpus;
  // Copied without the lock: a corpus may have a million chunks, and leases are renewed meanwhile.
  auto told = std::make_shared<Corpus>(*corpus);
  for (ReplicaTable::Leased& one : leased) {
    told->chunks[one.ordinal].leased = std::move(one.members);
  }
  if (holders.lacking.empty()) return told;
  for (ChunkPlacement& chunk : told->chunks) LeaveOutLacking(holders, chunk);
  return told;
}

std::vector<std::shared_ptr<const Corpus>> DirectoryState::List(std::string_view tenant) {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const Corpus>> list;
  for (const auto& [key, corpus] : corpora_) {
    if (Visible(*corpus, tenant)) list.push_back(corpus);
  }
  return list;
}

std::vector<LocatedChunk> DirectoryState::Locate(const ChunkId& id, std::string_view tenant,
                                                 bool for_calls) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  std::vector<LocatedChunk> visible;
  for (const ChunkPlace& place : PlacesOf(id)) {
    if (!Visible(*place.corpus, tenant)) continue;
    LocatedChunk located{place.corpus, place.ordinal, place.corpus->chunks[place.ordinal]};
    located.chunk.leased = replicas_.LeasedOf(*place.corpus, located.chunk);
    if (for_calls) {
      const CoverageView::Holders holders = HoldersOf(*place.corpus);
      if (!holders.lacking.empty()) LeaveOutLacking(holders, located.chunk);
    }
    visible.push_back(std::move(located));
  }
  return visible;
}

PromptChunks DirectoryState::FindPrompt(std::span<const uint64_t> heads,
                                        const std::optional<ChunkId>& model,
                                        std::string_view tenant) {
  PromptSearch search(tenant, model);
  while (!heads.empty()) {
    const auto slice = heads.first(std::min(heads.size(), kHeadSliceCount));
    heads = heads.subspan(slice.size());
    absl::MutexLock lock(&mu_);
    search.Look(heads_, slice);
  }
  return std::move(search).Finish();
}

bool DirectoryState::IsPlacedOn(const ChunkPlace& place, std::string_view holder) const {
  const ChunkPlacement& chunk = place.corpus->chunks[place.ordinal];
  const auto is_holder = [holder](const HolderId& id) { return id.name == holder; };
  if (std::any_of(chunk.holders.begin(), chunk.holders.end(), is_holder)) return true;
  const std::vector<HolderId> leased = replicas_.LeasedOf(*place.corpus, chunk);
  return std::any_of(leased.begin(), leased.end(), is_holder);
}

std::vector<uint32_t> DirectoryState::CountReferences(std::span<const ChunkId> ids,
                                                      std::string_view holder) {
  std::vector<uint32_t> counts;
  counts.reserve(ids.size());
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  for (const ChunkId& id : ids) {
    uint32_t count = 0;
    for (const ChunkPlace& place : PlacesOf(id))
      count += holder.empty() || IsPlacedOn(place, holder) ? 1 : 0;
    // It may be all that is left of a corpus.
    count += rebuild_.CountOf(id);
    counts.push_back(count);
  }
  return counts;
}

}  // namespace ckv
