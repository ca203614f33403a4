// The marks of a chunk: those that outlive its table, where its store saves them, and its idle
// time.

#include <optional>

#include "proto/status.h"
#include "store/chunk_table.h"
#include "store/chunk_table_slot.h"

namespace ckv {

absl::Status ChunkTable::Keep(const ChunkId& id, bool keep) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found) return NotHere(id);
  Slot& slot = *SlotAt(*found);
  const bool hot = (slot.state.load(std::memory_order_relaxed) & kHot) != 0;
  if (slot.durable && hot && keep != slot.what.kept) {
    if (keep) evictable_.Remove(*found);
    if (!keep) evictable_.Add(*found, slot.bytes(), double(slot.bytes()));
  }
  Shard& shard = ShardOf(id);
  absl::MutexLock shard_lock(&shard.mu);
  slot.facts_unsaved |= slot.what.kept != keep;
  slot.what.kept = keep;
  return absl::OkStatus();
}

std::optional<ChunkFacts> ChunkTable::UnsavedFacts(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found || !SlotAt(*found)->facts_unsaved) return std::nullopt;
  Slot& slot = *SlotAt(*found);
  slot.facts_unsaved = false;
  return ChunkFacts{slot.what.readers, slot.what.kept};
}

void ChunkTable::FactsNotSaved(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  if (const std::optional<uint32_t> found = SlotOf(id)) SlotAt(*found)->facts_unsaved = true;
}

bool ChunkTable::Touch(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (found) SlotAt(*found)->touched = clock_->Now();
  return found.has_value();
}

absl::Status ChunkTable::DropIdle(const ChunkId& id, Duration idle_min) {
  return Remove(id, /*even_kept=*/false, idle_min);
}

bool ChunkTable::IsDurable(const ChunkId& id) const {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  return found && SlotAt(*found)->durable;
}

void ChunkTable::MarkDurable(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found || SlotAt(*found)->durable) return;
  Slot& slot = *SlotAt(*found);
  slot.durable = true;
  slot.facts_unsaved = true;
  // It was not durable, so it is hot.
  if (!slot.what.kept) evictable_.Add(*found, slot.bytes(), double(slot.bytes()));
}

}  // namespace ckv
