// The order of work of a replacement: the places of the old version go, those of the new one are
// added, and only then is it known which chunks are orphans. A chunk that no corpus has any more
// loses its announcements last, because the orphans list the members that announced it.

#include "server/directory/tables/placed_corpora.h"

#include <algorithm>
#include <utility>

namespace ckv {
namespace {

// Calls `take` with each run of chunks that have the same holders: adjacent chunks mostly do.
template <typename Take>
void ForEachRun(const Corpus& corpus, Take take) {
  for (size_t begin = 0; begin < corpus.chunks.size();) {
    const std::vector<HolderId>& holders = corpus.chunks[begin].holders();
    size_t end = begin + 1;
    while (end < corpus.chunks.size() && corpus.chunks[end].holders() == holders) ++end;
    take(holders, end - begin);
    begin = end;
  }
}

}  // namespace

absl::btree_set<HolderId> HoldersOf(const Corpus& corpus) {
  absl::btree_set<HolderId> all;
  ForEachRun(corpus, [&](const std::vector<HolderId>& holders, size_t /*count*/) {
    all.insert(holders.begin(), holders.end());
  });
  return all;
}

std::shared_ptr<const Corpus> PlacedCorpora::Find(const CorpusKey& key) const {
  const auto found = corpora_.find(key);
  return found == corpora_.end() ? nullptr : found->second;
}

void PlacedCorpora::Replace(const CorpusKey& key, const std::shared_ptr<const Corpus>& corpus,
                            const CorpusRebuild& reports, std::vector<ChunkPlacement>* orphans) {
  const std::shared_ptr<const Corpus> gone = Find(key);
  if (gone != nullptr) RemovePlaces(*gone);
  if (corpus != nullptr) AddPlaces(corpus);
  if (gone != nullptr) {
    if (orphans != nullptr) *orphans = OrphansOf(*gone, reports);
    for (const ChunkPlacement& chunk : gone->chunks) {
      if (!places_.contains(chunk.id)) replicas_.RemoveChunk(chunk.id);
    }
  }
  if (corpus != nullptr) {
    corpora_.insert_or_assign(key, corpus);
  } else {
    corpora_.erase(key);
  }
}

void PlacedCorpora::AddPlaces(const std::shared_ptr<const Corpus>& corpus) {
  for (uint32_t i = 0; i < corpus->chunks.size(); ++i) {
    places_[corpus->chunks[i].id].push_back({.corpus = corpus, .ordinal = i});
  }
  CountPlaces(*corpus, /*in=*/true);
  chunk_count_ += corpus->chunks.size();
  replicas_.AddCorpus(*corpus);
  heads_.Add(*corpus);
}

void PlacedCorpora::RemovePlaces(const Corpus& corpus) {
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const auto places = places_.find(chunk.id);
    if (places == places_.end()) continue;  // a chunk that the corpus names twice
    std::erase_if(places->second,
                  [&](const ChunkPlace& place) { return place.corpus.get() == &corpus; });
    if (places->second.empty()) places_.erase(places);
  }
  CountPlaces(corpus, /*in=*/false);
  chunk_count_ -= corpus.chunks.size();
  replicas_.RemoveCorpus(corpus);
  heads_.Remove(corpus);
}

void PlacedCorpora::CountPlaces(const Corpus& corpus, bool in) {
  const CorpusKey key = KeyOf(corpus);
  ForEachRun(corpus, [&](const std::vector<HolderId>& holders, size_t chunk_count) {
    for (const HolderId& holder : holders) {
      CountByKey& counts = by_holder_[holder];
      uint64_t& count = counts[key];
      count = in ? count + chunk_count : count - chunk_count;
      if (count == 0) counts.erase(key);
      if (counts.empty()) by_holder_.erase(holder);
    }
  });
}

std::vector<ChunkPlacement> PlacedCorpora::OrphansOf(const Corpus& gone,
                                                     const CorpusRebuild& reports) const {
  std::vector<ChunkPlacement> orphans;
  for (const ChunkPlacement& chunk : gone.chunks) {
    if (reports.CountOf(chunk.id) > 0) continue;
    ChunkPlacement orphan = chunk;
    if (const auto places = places_.find(chunk.id); places != places_.end()) {
      for (const ChunkPlace& place : places->second) {
        const std::vector<HolderId>& wanted = place.corpus->chunks[place.ordinal].holders();
        std::erase_if(orphan.mutable_holders(), [&](const HolderId& holder) {
          return std::find(wanted.begin(), wanted.end(), holder) != wanted.end();
        });
      }
    } else {
      orphan.set_leased(replicas_.LeasedOf(gone, chunk));
    }
    if (!orphan.holders().empty() || !orphan.leased().empty()) orphans.push_back(std::move(orphan));
  }
  return orphans;
}

ReplicaTable::Places PlacedCorpora::PlacesOf(const ChunkId& id) const {
  const auto places = places_.find(id);
  if (places == places_.end()) return {};
  return places->second;
}

bool PlacedCorpora::IsPlacedOn(const ChunkPlace& place, std::string_view holder) const {
  const ChunkPlacement& chunk = place.corpus->chunks[place.ordinal];
  const auto is_holder = [holder](const HolderId& id) { return id.name == holder; };
  if (std::any_of(chunk.holders().begin(), chunk.holders().end(), is_holder)) return true;
  const std::vector<HolderId> leased = replicas_.LeasedOf(*place.corpus, chunk);
  return std::any_of(leased.begin(), leased.end(), is_holder);
}

uint32_t PlacedCorpora::CountReferences(const ChunkId& id, std::string_view holder) const {
  uint32_t count = 0;
  for (const ChunkPlace& place : PlacesOf(id))
    count += holder.empty() || IsPlacedOn(place, holder) ? 1 : 0;
  return count;
}

const PlacedCorpora::CountByKey* PlacedCorpora::PlacedOn(const HolderId& holder) const {
  const auto placed = by_holder_.find(holder);
  return placed == by_holder_.end() ? nullptr : &placed->second;
}

uint64_t PlacedCorpora::CountPlacedOn(const HolderId& holder) const {
  uint64_t sum = 0;
  if (const CountByKey* placed = PlacedOn(holder)) {
    for (const auto& [key, count] : *placed) sum += count;
  }
  return sum;
}

ReplicaTable::Outcome PlacedCorpora::Announce(uint64_t lease_id, const HolderId& member,
                                              std::string_view tenant, const ChunkId& id,
                                              CorporaByKey& changed) {
  const ReplicaTable::Places places = PlacesOf(id);
  const auto outcome = replicas_.Announce(lease_id, member, tenant, id, places);
  if (outcome != ReplicaTable::Outcome::kAdded) return outcome;
  for (const ChunkPlace& place : places) {
    if (ReplicaTable::IsReported(*place.corpus, tenant))
      changed.try_emplace(KeyOf(*place.corpus), place.corpus);
  }
  return outcome;
}

CorporaByKey PlacedCorpora::Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                                     std::span<const ChunkId> ids) {
  CorporaByKey changed;
  for (const ChunkId& id : ids) {
    const ReplicaTable::Places places = PlacesOf(id);
    for (const std::string& reported : replicas_.Withdraw(lease_id, tenant, id, places)) {
      for (const ChunkPlace& place : places) {
        if (ReplicaTable::IsReported(*place.corpus, reported))
          changed.try_emplace(KeyOf(*place.corpus), place.corpus);
      }
    }
  }
  return changed;
}

}  // namespace ckv
