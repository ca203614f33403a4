#include "server/directory/coverage/lacking_chunks.h"

#include <utility>

namespace ckv {

std::vector<ChunkId> LackingChunks::Take(const HolderId& holder, std::span<const ChunkId> ids,
                                         bool first, bool last) {
  Chunks& begun = begun_[holder];
  if (first) begun.clear();
  for (const ChunkId& id : ids) {
    if (begun.size() >= count_max_) break;
    begun.insert(id);
  }
  if (!last) return {};
  Chunks now = std::move(begun);
  begun_.erase(holder);
  std::shared_ptr<const Chunks> before;
  if (const auto found = lacking_.find(holder); found != lacking_.end()) {
    before = found->second;
    count_ -= before->size();
    lacking_.erase(found);
  }
  // Chunks beyond the limit count as present: a caller that requests one gets NotFound, as always.
  for (auto it = now.begin(); count_ + now.size() > count_max_;) now.erase(it++);
  std::vector<ChunkId> changed;
  for (const ChunkId& id : now) {
    if (before == nullptr || !before->contains(id)) changed.push_back(id);
  }
  if (before != nullptr) {
    for (const ChunkId& id : *before) {
      if (!now.contains(id)) changed.push_back(id);
    }
  }
  count_ += now.size();
  if (!now.empty()) lacking_[holder] = std::make_shared<const Chunks>(std::move(now));
  return changed;
}

void LackingChunks::Remove(const HolderId& holder) {
  begun_.erase(holder);
  const auto found = lacking_.find(holder);
  if (found == lacking_.end()) return;
  count_ -= found->second->size();
  lacking_.erase(found);
}

bool LackingChunks::Lacks(const HolderId& holder, const ChunkId& id) const {
  const auto found = lacking_.find(holder);
  return found != lacking_.end() && found->second->contains(id);
}

}  // namespace ckv
