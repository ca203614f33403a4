#include "server/directory/tables/pending_changes.h"

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace ckv {

const PendingChange* PendingChanges::Find(const CorpusKey& key) const {
  const auto found = pending_.find(key);
  return found == pending_.end() ? nullptr : found->second.get();
}

void PendingChanges::Add(const CorpusKey& key, std::shared_ptr<PendingChange> change) {
  pending_.emplace(key, std::move(change));
}

std::shared_ptr<PendingChange> PendingChanges::Take(const CorpusKey& key) {
  const auto place = pending_.find(key);
  CKV_CHECK(place != pending_.end());
  std::shared_ptr<PendingChange> pending = std::move(place->second);
  pending_.erase(place);
  return pending;
}

uint64_t PendingChanges::NewCorpusCount() const {
  uint64_t count = 0;
  for (const auto& [key, pending] : pending_) count += pending->is_new ? 1 : 0;
  return count;
}

uint64_t PendingChanges::AddedChunkCount() const {
  uint64_t count = 0;
  for (const auto& [key, pending] : pending_) count += pending->added_count;
  return count;
}

uint64_t PendingChanges::AppliedUpTo(const ChangeNumbers& numbers) const {
  uint64_t number = numbers.applied();
  for (const auto& [key, pending] : pending_) {
    // A corpus that is rebuilt has no number of this folder.
    if (!pending->is_rebuilt) number = std::min(number, numbers.LastAssigned(pending->number - 1));
  }
  return number;
}

}  // namespace ckv
