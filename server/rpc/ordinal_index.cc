#include "server/rpc/ordinal_index.h"

#include <algorithm>
#include <utility>

namespace ckv {

OrdinalIndex::OrdinalIndex(const Corpus& corpus) {
  ordinals_.reserve(corpus.chunks.size());
  for (uint32_t i = 0; i < corpus.chunks.size(); ++i) ordinals_.emplace(corpus.chunks[i].id, i);
}

std::optional<uint32_t> OrdinalIndex::Find(const ChunkId& id) const {
  const auto it = ordinals_.find(id);
  return it == ordinals_.end() ? std::nullopt : std::optional(it->second);
}

std::shared_ptr<const OrdinalIndex> OrdinalIndices::For(
    const std::shared_ptr<const Corpus>& corpus) {
  {
    absl::MutexLock lock(&mu_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      // By the owner, so that no later snapshot at the same address is taken for it.
      if (it->corpus.owner_before(corpus) || corpus.owner_before(it->corpus)) continue;
      std::rotate(entries_.begin(), it, it + 1);
      return entries_.front().index;
    }
  }
  // Without the lock: two calls may make one each, and the later is kept.
  auto index = std::make_shared<const OrdinalIndex>(*corpus);
  absl::MutexLock lock(&mu_);
  entries_.insert(entries_.begin(), {corpus, index});
  if (entries_.size() > kCorpusCountMax) entries_.pop_back();
  return index;
}

}  // namespace ckv
