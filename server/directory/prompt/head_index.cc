#include "server/directory/prompt/head_index.h"

#include <algorithm>

#include "proto/geometry.h"

namespace ckv {

void HeadIndex::Add(const Corpus& corpus) {
  for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
    const uint64_t head = corpus.chunks[i].print.head;
    if (head != 0) places_[head].push_back({.corpus = &corpus, .ordinal = i});
  }
}

void HeadIndex::Remove(const Corpus& corpus) {
  // Texts that begin alike share a head, whose places are gone through once and not once a chunk.
  absl::flat_hash_set<uint64_t> done;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const uint64_t head = chunk.print.head;
    if (head == 0 || !done.insert(head).second) continue;
    const auto places = places_.find(head);
    if (places == places_.end()) continue;  // a corpus that was never added
    const auto end = std::remove_if(places->second.begin(), places->second.end(),
                                    [&](const Place& place) { return place.corpus == &corpus; });
    places->second.erase(end, places->second.end());
    if (places->second.empty()) places_.erase(places);
  }
}

const HeadIndex::Places* HeadIndex::Find(uint64_t head) const {
  const auto places = places_.find(head);
  return places == places_.end() ? nullptr : &places->second;
}

void PromptSearch::Look(const HeadIndex& index, std::span<const uint64_t> heads) {
  // Between two calls a corpus may go, and another one come at its address.
  Readable readable;
  for (const uint64_t head : heads) {
    const HeadIndex::Places* const places = index.Find(head);
    if (places == nullptr || !heads_.insert(head).second) continue;
    TakeHead(*places, readable);
  }
}

void PromptSearch::TakeHead(const HeadIndex::Places& places, Readable& readable) {
  size_t taken = 0;
  for (const HeadIndex::Place& place : places) {
    const auto [known, is_new] = readable.try_emplace(place.corpus, false);
    if (is_new) known->second = MayRead(*place.corpus);
    const ChunkPlacement& chunk = place.corpus->chunks[place.ordinal];
    if (!known->second || ids_.contains(chunk.id)) continue;
    if (taken == kChunksPerHeadMax || found_.chunks.size() == kPromptChunkCountMax) {
      found_.truncated = true;
      return;
    }
    ++taken;
    ids_.insert(chunk.id);
    found_.chunks.push_back(
        {chunk.id, chunk.parent, chunk.token_count, chunk.position, chunk.print});
  }
}

bool PromptSearch::MayRead(const Corpus& corpus) {
  // A tenant sees its own corpora and the shared ones (I6).
  if (!corpus.tenant.empty() && corpus.tenant != tenant_) return false;
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
