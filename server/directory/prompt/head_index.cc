#include "server/directory/prompt/head_index.h"

#include <algorithm>

#include "proto/geometry.h"

namespace ckv {

void HeadIndex::Add(const Corpus& corpus) {
  Heads* heads = nullptr;  // made with the first chunk that has a print
  for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
    const uint64_t head = corpus.chunks[i].token_hash().head;
    if (head == 0) continue;
    if (heads == nullptr) heads = &tables_[corpus.tenant][ModelFingerprint(corpus.geometry)];
    (*heads)[head].push_back({.corpus = &corpus, .ordinal = i});
  }
}

void HeadIndex::Remove(const Corpus& corpus) {
  const auto models = tables_.find(corpus.tenant);
  if (models == tables_.end()) return;
  const auto heads = models->second.find(ModelFingerprint(corpus.geometry));
  if (heads == models->second.end()) return;
  // Texts that begin alike share a head, whose places are gone through once and not once a chunk.
  absl::flat_hash_set<uint64_t> done;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const uint64_t head = chunk.token_hash().head;
    if (head == 0 || !done.insert(head).second) continue;
    const auto places = heads->second.find(head);
    if (places == heads->second.end()) continue;  // a corpus that was never added
    const auto end = std::remove_if(places->second.begin(), places->second.end(),
                                    [&](const Place& place) { return place.corpus == &corpus; });
    places->second.erase(end, places->second.end());
    if (places->second.empty()) heads->second.erase(places);
  }
  if (heads->second.empty()) models->second.erase(heads);
  if (models->second.empty()) tables_.erase(models);
}

const absl::flat_hash_map<ChunkId, HeadIndex::Heads>* HeadIndex::Find(
    const std::string& tenant) const {
  const auto models = tables_.find(tenant);
  return models == tables_.end() ? nullptr : &models->second;
}

std::vector<PromptSearch::Table> PromptSearch::Tables(const HeadIndex& index) const {
  std::vector<Table> tables;
  const auto add = [&](const std::string& tenant) {
    const auto* const models = index.Find(tenant);
    if (models == nullptr) return;
    for (const auto& [model, heads] : *models) {
      if (!model_ || *model_ == model) tables.push_back({model, heads});
    }
  };
  if (!tenant_.empty()) add(tenant_);
  add("");
  return tables;
}

void PromptSearch::Look(const HeadIndex& index, std::span<const uint64_t> heads) {
  const std::vector<Table> tables = Tables(index);
  size_t looked = 0;
  for (const uint64_t head : heads) {
    if (heads_.contains(head)) continue;
    for (const Table& table : tables) {
      const auto places = table.heads.find(head);
      if (places == table.heads.end()) continue;
      heads_.insert(head);
      TakeHead(table.model, places->second, looked);
    }
  }
}

void PromptSearch::TakeHead(const ChunkId& model, const HeadIndex::Places& places, size_t& looked) {
  if (!models_.contains(model) && models_.size() == kPromptModelCountMax) {
    found_.truncated = true;
    return;
  }
  if (models_.insert(model).second) found_.models.push_back(places.front().corpus->geometry);
  const size_t before = found_.chunks.size();
  for (const HeadIndex::Place& place : places) {
    const ChunkPlacement& chunk = place.corpus->chunks[place.ordinal];
    const Record record = {chunk.id,       chunk.parent(),          chunk.token_count,
                           chunk.position, chunk.token_hash().head, chunk.token_hash().whole};
    if (looked == kPlacesPerLookMax) {
      found_.truncated = true;
      return;
    }
    ++looked;
    if (records_.contains(record)) continue;
    if (found_.chunks.size() - before == kChunksPerHeadMax ||
        found_.chunks.size() == kPromptChunkCountMax) {
      found_.truncated = true;
      return;
    }
    records_.insert(record);
    found_.chunks.push_back(
        {chunk.id, chunk.parent(), chunk.token_count, chunk.position, chunk.token_hash()});
  }
}

}  // namespace ckv
