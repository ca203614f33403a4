#include "server/directory/prompt/head_index.h"

#include <algorithm>

#include "proto/geometry.h"

namespace ckv {

void HeadIndex::Add(const Corpus& corpus) {
  for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
    const uint64_t head = corpus.chunks[i].print.head;
    if (head != 0) places_[corpus.tenant][head].push_back({.corpus = &corpus, .ordinal = i});
  }
}

void HeadIndex::Remove(const Corpus& corpus) {
  const auto own = places_.find(corpus.tenant);
  if (own == places_.end()) return;
  // Texts that begin alike share a head, whose places are gone through once and not once a chunk.
  absl::flat_hash_set<uint64_t> done;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const uint64_t head = chunk.print.head;
    if (head == 0 || !done.insert(head).second) continue;
    const auto places = own->second.find(head);
    if (places == own->second.end()) continue;  // a corpus that was never added
    const auto end = std::remove_if(places->second.begin(), places->second.end(),
                                    [&](const Place& place) { return place.corpus == &corpus; });
    places->second.erase(end, places->second.end());
    if (places->second.empty()) own->second.erase(places);
  }
  if (own->second.empty()) places_.erase(own);
}

const HeadIndex::Places* HeadIndex::Find(const std::string& tenant, uint64_t head) const {
  const auto own = places_.find(tenant);
  if (own == places_.end()) return nullptr;
  const auto places = own->second.find(head);
  return places == own->second.end() ? nullptr : &places->second;
}

void PromptSearch::Look(const HeadIndex& index, std::span<const uint64_t> heads) {
  // Between two calls a corpus may go, and another one come at its address.
  Readable readable;
  const std::string of_all;
  for (const uint64_t head : heads) {
    const HeadIndex::Places* const shared = index.Find(of_all, head);
    const HeadIndex::Places* const own = tenant_.empty() ? nullptr : index.Find(tenant_, head);
    if ((shared == nullptr && own == nullptr) || !heads_.insert(head).second) continue;
    if (own != nullptr) TakeHead(*own, readable);
    if (shared != nullptr) TakeHead(*shared, readable);
  }
}

void PromptSearch::TakeHead(const HeadIndex::Places& places, Readable& readable) {
  const size_t before = found_.chunks.size(), seen = std::min(places.size(), kPlacesPerHeadMax);
  if (seen < places.size()) found_.truncated = true;
  for (const HeadIndex::Place& place : std::span(places).first(seen)) {
    const auto [known, is_new] = readable.try_emplace(place.corpus, false);
    if (is_new) known->second = HasModel(*place.corpus);
    if (!known->second) continue;
    const ChunkPlacement& chunk = place.corpus->chunks[place.ordinal];
    const Record record = {chunk.id,       chunk.parent,     chunk.token_count,
                           chunk.position, chunk.print.head, chunk.print.whole};
    if (records_.contains(record)) continue;
    if (found_.chunks.size() - before == kChunksPerHeadMax ||
        found_.chunks.size() == kPromptChunkCountMax) {
      found_.truncated = true;
      return;
    }
    records_.insert(record);
    found_.chunks.push_back(
        {chunk.id, chunk.parent, chunk.token_count, chunk.position, chunk.print});
  }
}

bool PromptSearch::HasModel(const Corpus& corpus) {
  if (model_ && *model_ != ModelFingerprint(corpus.geometry)) return false;
  if (std::find(found_.models.begin(), found_.models.end(), corpus.geometry) ==
      found_.models.end()) {
    if (found_.models.size() == kPromptModelCountMax) {
      found_.truncated = true;
      return false;
    }
    found_.models.push_back(corpus.geometry);
  }
  return true;
}

}  // namespace ckv
