// The marks of a chunk: those that outlive its table, where its store saves them, its idle time,
// and when it ends.

#include <algorithm>
#include <chrono>
#include <optional>

#include "proto/status.h"
#include "store/chunk_table.h"
#include "store/chunk_table_slot.h"

namespace ckv {

namespace {

uint64_t MillisecondsUp(Duration duration) {
  return static_cast<uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

}  // namespace

absl::Status ChunkTable::Keep(const ChunkId& id, bool keep) {
  absl::MutexLock lock(&mu_);
  return SetKept(id, keep, kInstantMax);
}

absl::Status ChunkTable::KeepFor(const ChunkId& id, Duration time) {
  absl::MutexLock lock(&mu_);
  return SetKept(id, /*keep=*/true, clock_->Now() + time);
}

absl::Status ChunkTable::SetKept(const ChunkId& id, bool keep, Instant until) {
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
  const ChunkExpiry::Times* times = expiry_.Find(id);
  const bool had_end = times != nullptr && times->kept_until != kInstantMax;
  slot.facts_unsaved |= slot.what.kept != keep || had_end || until != kInstantMax;
  slot.what.kept = keep;
  if (keep) expiry_.Keep(id, until);
  if (!keep) expiry_.Unkeep(id);
  return absl::OkStatus();
}

std::optional<ChunkFacts> ChunkTable::UnsavedFacts(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found || !SlotAt(*found)->facts_unsaved) return std::nullopt;
  Slot& slot = *SlotAt(*found);
  slot.facts_unsaved = false;
  ChunkFacts facts;
  facts.readers = slot.what.readers;
  facts.kept = slot.what.kept;
  const ChunkExpiry::Times* times = expiry_.Find(id);
  if (times == nullptr) return facts;
  facts.ttl_ms = MillisecondsUp(times->ttl);
  if (facts.kept && times->kept_until != kInstantMax) {
    const Duration left = std::max(times->kept_until - clock_->Now(), Duration(0));
    facts.kept_until_ms = WallClockMilliseconds() + MillisecondsUp(left);
  }
  return facts;
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
  return Remove(id, {.even_kept = false, .idle_min = idle_min, .expired_only = false});
}

absl::Status ChunkTable::CheckMayGo(const Slot& slot, const RemoveIf& only) const {
  const ChunkId& id = slot.what.id;
  if (slot.what.kept && !only.even_kept)
    return absl::FailedPreconditionError(absl::StrFormat("chunk %s is kept", id.ShortHex()));
  const Instant now = clock_->Now();
  const ChunkExpiry::Times* times = only.expired_only ? expiry_.Find(id) : nullptr;
  if ((only.idle_min > Duration(0) && now - slot.touched < only.idle_min) ||
      (only.expired_only && (times == nullptr || times->drop_at > now))) {
    return absl::FailedPreconditionError(
        absl::StrFormat("chunk %s was put or asked for just now", id.ShortHex()));
  }
  return absl::OkStatus();
}

absl::Status ChunkTable::PutAgain(const ChunkId& id, Duration ttl) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found) return NotHere(id);
  if (expiry_.PutAgain(id, ttl, clock_->Now())) SlotAt(*found)->facts_unsaved = true;
  return absl::OkStatus();
}

void ChunkTable::RestoreTimes(const ChunkId& id, const ChunkFacts& facts) {
  // Whatever a file says: sums with it stay within a Duration.
  constexpr uint64_t kMillisecondsMax = uint64_t{1} << 40;
  const uint64_t wall_ms = WallClockMilliseconds();
  absl::MutexLock lock(&mu_);
  const Instant now = clock_->Now();
  expiry_.Put(id, std::chrono::milliseconds(std::min(facts.ttl_ms, kMillisecondsMax)), now);
  if (!facts.kept) return;
  if (facts.kept_until_ms == 0) return expiry_.Keep(id, kInstantMax);
  const uint64_t left_ms = facts.kept_until_ms - std::min(wall_ms, facts.kept_until_ms);
  expiry_.Keep(id, now + std::chrono::milliseconds(std::min(left_ms, kMillisecondsMax)));
}

std::optional<ChunkId> ChunkTable::NextExpired() {
  absl::MutexLock lock(&mu_);
  const Instant now = clock_->Now();
  for (int i = 0; i < kMarkEndCountMax; ++i) {
    const std::optional<ChunkId> id = expiry_.NextDue(now);
    if (!id || !expiry_.Find(*id)->kept) return id;
    SetKept(*id, /*keep=*/false, kInstantMax).IgnoreError();  // it is resident
  }
  return std::nullopt;
}

absl::Status ChunkTable::DropExpired(const ChunkId& id) {
  return Remove(id, {.even_kept = false, .idle_min = Duration(0), .expired_only = true});
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

void ChunkTable::SetEvictable(const ChunkId& id, bool evictable) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found) return;
  const Slot& slot = *SlotAt(*found);
  evictable_.Remove(*found);
  const bool hot = (slot.state.load(std::memory_order_relaxed) & kHot) != 0;
  if (evictable && hot && slot.durable && !slot.what.kept)
    evictable_.Add(*found, slot.bytes(), double(slot.bytes()));
}

}  // namespace ckv
