#include "store/memory/chunk_expiry.h"

#include <algorithm>

namespace ckv {

template <typename Change>
void ChunkExpiry::Edit(const ChunkId& id, Change change) {
  Times& times = times_[id];
  due_.erase({DueOf(times), id});
  change(times);
  if (DueOf(times) != kInstantMax) due_.emplace(DueOf(times), id);
  const bool ends = times.ttl > Duration(0) || (times.kept && times.kept_until != kInstantMax);
  if (!ends) times_.erase(id);
}

void ChunkExpiry::Keep(const ChunkId& id, Instant until) {
  Edit(id, [until](Times& times) {
    times.kept = true;
    times.kept_until = until;
  });
}

void ChunkExpiry::Unkeep(const ChunkId& id) {
  Edit(id, [](Times& times) {
    times.kept = false;
    times.kept_until = kInstantMax;
  });
}

void ChunkExpiry::Put(const ChunkId& id, Duration ttl, Instant now) {
  if (ttl <= Duration(0)) return;
  Edit(id, [&](Times& times) {
    times.ttl = ttl;
    times.drop_at = now + ttl;
  });
}

bool ChunkExpiry::PutAgain(const ChunkId& id, Duration ttl, Instant now) {
  const Times* found = Find(id);
  if (found == nullptr || found->ttl == Duration(0)) return false;
  const Duration before = found->ttl;
  Edit(id, [&](Times& times) {
    if (ttl <= Duration(0)) {
      times.ttl = Duration(0);
      times.drop_at = kInstantMax;
    } else if (now + ttl >= times.drop_at) {
      times.ttl = ttl;
      times.drop_at = now + ttl;
    }
  });
  const Times* after = Find(id);
  return after == nullptr || after->ttl != before;
}

void ChunkExpiry::Forget(const ChunkId& id) {
  const auto found = times_.find(id);
  if (found == times_.end()) return;
  due_.erase({DueOf(found->second), id});
  times_.erase(found);
}

const ChunkExpiry::Times* ChunkExpiry::Find(const ChunkId& id) const {
  const auto found = times_.find(id);
  return found == times_.end() ? nullptr : &found->second;
}

std::optional<ChunkId> ChunkExpiry::NextDue(Instant now) const {
  if (due_.empty() || due_.begin()->first > now) return std::nullopt;
  return due_.begin()->second;
}

}  // namespace ckv
