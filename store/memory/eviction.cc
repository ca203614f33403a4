#include "store/memory/eviction.h"

#include <algorithm>

#include "proto/base/status.h"

namespace ckv {

void EvictionQueue::Place(uint32_t slot, Entry& entry) {
  entry.priority = clock_ + entry.use_count * entry.worth;
  order_.emplace(entry.priority, slot);
}

void EvictionQueue::Add(uint32_t slot, uint64_t bytes, double cost_us) {
  if (slot >= entries_.size()) entries_.resize(slot + 1);
  Entry& entry = entries_[slot];
  CKV_CHECK(entry.use_count == 0);
  entry.worth = cost_us / double(std::max<uint64_t>(bytes, 1));
  entry.use_count = 1;
  Place(slot, entry);
}

void EvictionQueue::Remove(uint32_t slot) {
  if (slot >= entries_.size() || entries_[slot].use_count == 0) return;
  order_.erase({entries_[slot].priority, slot});
  entries_[slot].use_count = 0;
}

void EvictionQueue::Use(uint32_t slot) {
  if (slot >= entries_.size() || entries_[slot].use_count == 0) return;
  Entry& entry = entries_[slot];
  order_.erase({entry.priority, slot});
  entry.use_count = std::min(entry.use_count + 1, kUseCountMax);
  Place(slot, entry);
}

void EvictionQueue::Evicted(uint32_t slot) {
  CKV_CHECK(slot < entries_.size() && entries_[slot].use_count > 0);
  clock_ = std::max(clock_, entries_[slot].priority);
  Remove(slot);
}

}  // namespace ckv
