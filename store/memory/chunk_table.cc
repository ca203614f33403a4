// The states of a slot. Its atomic word has the generation, kResident, kHot and the pins:
//   free      in free_slots_      Insert: hot. InsertCold: cold
//   hot       rows in the arena   EvictOne, without pins: cold. Drop, Chill: dropped
//   cold      rows in the file    Warm: hot. Drop: dropped
//   dropped   no longer found     without pins, or after the last Unpin, Free: free
// A drop raises the generation, so no old locator is valid. Chill drops damaged rows and adds the
// chunk again as cold. mu_ guards all changes but pins. Find and Pin do not take mu_.

#include "store/memory/chunk_table.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "store/memory/chunk_table_slot.h"

namespace ckv {
namespace {

// The most slots of damaged rows that are still being read, in addition to those of chunks.
constexpr uint32_t kChilledCountMax = 64;

absl::Status Full(uint32_t chunk_count) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("chunk table: full with %d chunks", chunk_count));
}

absl::Status Dropped() { return absl::NotFoundError("the chunk was dropped since it was found"); }

}  // namespace

ChunkPin::ChunkPin(ChunkPin&& other) noexcept
    : table_(other.table_), slot_(other.slot_), chunk_(std::exchange(other.chunk_, nullptr)) {}

ChunkPin& ChunkPin::operator=(ChunkPin&& other) noexcept {
  if (this != &other) {
    if (chunk_ != nullptr) table_->Unpin(slot_);
    table_ = other.table_;
    slot_ = other.slot_;
    chunk_ = std::exchange(other.chunk_, nullptr);
  }
  return *this;
}

ChunkPin::~ChunkPin() {
  if (chunk_ != nullptr) table_->Unpin(slot_);
}

ChunkTable::ChunkTable(Arena* arena, uint32_t chunk_count_max, Clock* clock)
    : arena_(arena),
      chunk_count_max_(chunk_count_max),
      salt_(RandomWord()),
      ledger_(clock),
      slots_(chunk_count_max) {}

ChunkTable::~ChunkTable() {
  CKV_CHECK(stats().pin_count == 0);  // a pin that outlives its table points into nothing
}

uint64_t ChunkTable::HashOf(const ChunkId& id) const {
  uint64_t part;
  std::memcpy(&part, id.bytes.data(), sizeof(part));
  return absl::Hash<std::pair<uint64_t, uint64_t>>()({part, salt_});
}

std::optional<uint32_t> ChunkTable::SlotOf(const ChunkId& id) const {
  return index_.Find(HashOf(id),
                     [this, &id](uint32_t slot) { return slots_.At(slot)->IsOf(id).has_value(); });
}

uint64_t DigestOf(std::span<const uint64_t> tensor_checksums) {
  return ChecksumOf(std::as_bytes(tensor_checksums));
}

absl::Status ChunkTable::CheckNew(const ChunkInfo& info, std::string_view tenant) {
  const std::optional<uint32_t> found = SlotOf(info.id);
  if (!found)
    return used_slot_count_ < chunk_count_max_ ? absl::OkStatus() : Full(used_slot_count_);
  ChunkSlot& slot = *slots_.At(*found);
  if (!ledger_.MayRead(info.id, tenant)) {
    if (DigestOf(info.tensor_checksums) != slot.what.checksums_digest) {
      return absl::DataLossError(absl::StrFormat(
          "chunk %s: its rows are not those that others put here", info.id.ShortHex()));
    }
    CKV_RETURN_IF_ERROR(ledger_.AddReader(info.id, tenant));
    slot.for_everyone.store(tenant.empty(), std::memory_order_relaxed);
  }
  ledger_.Touch(info.id);
  return absl::AlreadyExistsError(absl::StrFormat("chunk %s is resident", info.id.ShortHex()));
}

absl::StatusOr<ChunkWriter> ChunkTable::Begin(ChunkInfo info, const Geometry& geometry,
                                              std::string_view tenant) {
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(CheckNew(info, tenant));
  }
  // Checked before it is interned, which is permanent: a malformed chunk must not use up a
  // geometry.
  CKV_RETURN_IF_ERROR(ValidateChunkInfo(info, geometry));
  CKV_ASSIGN_OR_RETURN(const Geometry* interned, geometries_.Intern(geometry));
  return ChunkWriter::Begin(std::move(info), interned, arena_);
}

uint32_t ChunkTable::TakeSlot(const ChunkSummary& chunk, bool for_everyone) {
  geometries_.AddUse(chunk.geometry);
  token_count_ += chunk.token_count;
  used_slot_count_ += 1;
  uint32_t index = slot_end_;
  if (free_slots_.empty()) {
    slot_end_ += 1;
    slots_.Add(index);
  } else {
    index = free_slots_.back();
    free_slots_.pop_back();
  }
  ChunkSlot& slot = *slots_.At(index);
  slot.Become(chunk, for_everyone);
  slot.durable = false;
  slot.held_back = false;
  slot.use_count.store(0, std::memory_order_relaxed);
  return index;
}

// Makes the slot readable.
void ChunkTable::Publish(uint32_t index, bool hot) {
  ChunkSlot& slot = *slots_.At(index);
  const uint64_t state = slot.state.load(std::memory_order_relaxed);
  slot.state.store(WithGeneration(GenerationOf(state)) | kResident | (hot ? kHot : 0),
                   std::memory_order_release);
  in_order_.emplace(slot.what.id, index);
  index_.Insert(HashOf(slot.what.id), index,
                [this](uint32_t other) { return HashOf(slots_.At(other)->what.id); });
  change_count_.fetch_add(1, std::memory_order_release);
}

absl::Status ChunkTable::Insert(Chunk chunk, std::string_view tenant, bool durable, Duration ttl) {
  absl::MutexLock lock(&mu_);
  CKV_RETURN_IF_ERROR(CheckNew(chunk.info(), tenant));
  const ChunkInfo& info = chunk.info();
  const ChunkSummary what = {.id = info.id,
                             .position = info.position,
                             .token_count = info.token_count(),
                             .geometry = &chunk.geometry(),
                             .checksums_digest = DigestOf(info.tensor_checksums)};
  const uint32_t index = TakeSlot(what, tenant.empty());
  ChunkSlot& slot = *slots_.At(index);
  slot.chunk = std::make_unique<Chunk>(std::move(chunk));
  slot.durable = durable;
  if (durable) evictable_.Add(index, slot.bytes(), /*cost_us=*/double(slot.bytes()));
  ledger_.Open(what.id, tenant, ttl);
  Publish(index, /*hot=*/true);
  return absl::OkStatus();
}

absl::Status ChunkTable::InsertCold(const ChunkSummary& chunk, const ChunkFacts& facts) {
  absl::MutexLock lock(&mu_);
  if (SlotOf(chunk.id)) {
    return absl::AlreadyExistsError(absl::StrFormat("chunk %s is resident", chunk.id.ShortHex()));
  }
  if (used_slot_count_ >= chunk_count_max_) return Full(used_slot_count_);
  ledger_.Restore(chunk.id, facts);
  const uint32_t index = TakeSlot(chunk, ledger_.MayRead(chunk.id, ""));
  slots_.At(index)->durable = true;
  cold_count_ += 1;
  Publish(index, /*hot=*/false);
  return absl::OkStatus();
}

absl::Status ChunkTable::Warm(ChunkLocator locator, Chunk chunk, double cost_us) {
  absl::MutexLock lock(&mu_);
  ChunkSlot* slot = slots_.At(locator.slot);
  if (slot == nullptr) return Dropped();
  const uint64_t state = slot->state.load(std::memory_order_acquire);
  if (GenerationOf(state) != locator.generation || (state & kResident) == 0 || (state & kHot) != 0)
    return Dropped();
  CKV_CHECK(chunk.info().id == slot->what.id);
  slot->chunk = std::make_unique<Chunk>(std::move(chunk));
  // A cold slot has no pins, and under mu_ no other thread makes it hot or drops it.
  slot->state.store(state | kHot, std::memory_order_release);
  cold_count_ -= 1;
  if (!ledger_.IsKept(slot->what.id)) evictable_.Add(locator.slot, slot->bytes(), cost_us);
  return absl::OkStatus();
}

std::optional<ChunkTable::Evicted> ChunkTable::EvictOne() {
  absl::MutexLock lock(&mu_);
  while (true) {
    const auto may_go = [this](uint32_t index) {
      return (slots_.At(index)->state.load(std::memory_order_relaxed) & kPinsMask) == 0 ||
             CKV_PLANTED_BUG("evicts-pinned");
    };
    const std::optional<uint32_t> next = evictable_.Next(may_go);
    if (!next) return std::nullopt;
    ChunkSlot& slot = *slots_.At(*next);
    // Pins do not touch the queue: a chunk used since it was last at the front moves back.
    if (slot.use_count.exchange(0, std::memory_order_relaxed) > 0) {
      evictable_.Use(*next);
      continue;
    }
    uint64_t state = slot.state.load(std::memory_order_relaxed);
    if (!CKV_PLANTED_BUG("evicts-pinned")) state &= ~kPinsMask;
    if (!slot.state.compare_exchange_strong(state, state & ~kHot, std::memory_order_acq_rel))
      continue;  // pinned just now
    evictable_.Evicted(*next);
    cold_count_ += 1;
    evicted_count_ += 1;
    const std::unique_ptr<Chunk> chunk = std::move(slot.chunk);
    return Evicted{{*next, GenerationOf(state)}, std::move(*chunk)};
  }
}

absl::StatusOr<ChunkLocator> ChunkTable::Find(const ChunkId& id, const Geometry& geometry,
                                              std::string_view tenant) const {
  std::optional<ChunkSlot::Seen> seen;
  const std::optional<uint32_t> slot = index_.Find(
      HashOf(id), [&](uint32_t index) { return (seen = slots_.At(index)->IsOf(id)).has_value(); });
  if (!slot || (!seen->for_everyone && !ledger_.MayRead(id, tenant))) return NotHere(id);
  const Geometry& resident = *seen->geometry;
  if (&resident != &geometry && resident != geometry) {
    return absl::FailedPreconditionError(absl::StrFormat("chunk %s has another geometry: %s",
                                                         id.ShortHex(),
                                                         DescribeDifference(resident, geometry)));
  }
  return ChunkLocator{*slot, seen->generation};
}

absl::StatusOr<ChunkLocator> ChunkTable::Locate(const ChunkId& id) const {
  std::optional<ChunkSlot::Seen> seen;
  const std::optional<uint32_t> slot = index_.Find(
      HashOf(id), [&](uint32_t index) { return (seen = slots_.At(index)->IsOf(id)).has_value(); });
  if (!slot) return NotHere(id);
  return ChunkLocator{*slot, seen->generation};
}

absl::StatusOr<ChunkPin> ChunkTable::Pin(ChunkLocator locator) const {
  ChunkSlot* slot = slots_.At(locator.slot);
  if (slot == nullptr) return Dropped();
  uint64_t state = slot->state.load(std::memory_order_relaxed);
  do {
    if (GenerationOf(state) != locator.generation || (state & kResident) == 0) return Dropped();
    if ((state & kHot) == 0) return absl::UnavailableError("the chunk's rows are on disk");
    CKV_CHECK((state & kPinsMask) != kPinsMask);
  } while (!slot->state.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                              std::memory_order_relaxed));
  // Only the first pin after EvictOne's check writes: a chunk that is pinned often writes no more.
  if (slot->use_count.load(std::memory_order_relaxed) == 0)
    slot->use_count.store(1, std::memory_order_relaxed);
  // A pin changes nothing of what the table has, but its end may free a slot.
  return ChunkPin(const_cast<ChunkTable*>(this), locator.slot, slot->chunk.get());
}

bool ChunkTable::IsHot(ChunkLocator locator) const {
  const ChunkSlot* const slot = slots_.At(locator.slot);
  if (slot == nullptr) return false;
  const uint64_t state = slot->state.load(std::memory_order_acquire);
  return GenerationOf(state) == locator.generation && (state & kResident) != 0 &&
         (state & kHot) != 0;
}

absl::StatusOr<ChunkPin> ChunkTable::Pin(const ChunkId& id, const Geometry& geometry,
                                         std::string_view tenant) const {
  CKV_ASSIGN_OR_RETURN(const ChunkLocator locator, Find(id, geometry, tenant));
  return Pin(locator);
}

void ChunkTable::Unpin(uint32_t index) {
  const uint64_t before = slots_.At(index)->state.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & kPinsMask) == 1 && (before & kResident) == 0) Free(index);
}

// Called once for a slot that is neither resident nor pinned, by the caller that made it so.
void ChunkTable::Free(uint32_t index) {
  std::unique_ptr<Chunk> freed;  // destroyed after the unlock: it takes the arena's lock
  absl::MutexLock lock(&mu_);
  ChunkSlot& slot = *slots_.At(index);
  freed = std::move(slot.chunk);
  used_slot_count_ -= 1;
  // A slot whose generations are used up is retired: a locator is never valid twice.
  if (GenerationOf(slot.state.load(std::memory_order_relaxed)) != UINT32_MAX)
    free_slots_.push_back(index);
}

absl::StatusOr<ChunkSummary> ChunkTable::Describe(ChunkLocator locator) const {
  absl::MutexLock lock(&mu_);
  const ChunkSlot* slot = slots_.At(locator.slot);
  if (slot == nullptr) return Dropped();
  const uint64_t state = slot->state.load(std::memory_order_relaxed);
  if (GenerationOf(state) != locator.generation || (state & kResident) == 0) return Dropped();
  return slot->what;
}

absl::Status ChunkTable::Drop(const ChunkId& id, const DropIf& only) {
  uint32_t index = 0;
  bool free = false;
  {
    absl::MutexLock lock(&mu_);
    const std::optional<uint32_t> found = SlotOf(id);
    if (!found) return NotHere(id);
    index = *found;
    if (only.in_memory_only && slots_.At(index)->durable)
      return absl::FailedPreconditionError(absl::StrFormat("chunk %s has a file", id.ShortHex()));
    CKV_RETURN_IF_ERROR(ledger_.Close(id, only));
    free = TakeOut(index);
  }
  if (free) Free(index);
  return absl::OkStatus();
}

bool ChunkTable::TakeOut(uint32_t index) {
  ChunkSlot& slot = *slots_.At(index);
  const ChunkId& id = slot.what.id;
  in_order_.erase(id);
  index_.Erase(HashOf(id), index);
  change_count_.fetch_add(1, std::memory_order_release);
  token_count_ -= slot.what.token_count;
  geometries_.RemoveUse(slot.what.geometry);
  evictable_.Remove(index);
  uint64_t state = slot.state.load(std::memory_order_relaxed);
  uint64_t dropped = 0;
  do {
    dropped = WithGeneration(GenerationOf(state) + 1) | (state & kPinsMask);
  } while (!slot.state.compare_exchange_weak(state, dropped, std::memory_order_acq_rel));
  if ((state & kHot) == 0) cold_count_ -= 1;
  return (state & kPinsMask) == 0;
}

absl::Status ChunkTable::Chill(ChunkLocator locator) {
  absl::Status status;
  bool free = false;
  {
    absl::MutexLock lock(&mu_);
    ChunkSlot* const slot = slots_.At(locator.slot);
    if (slot == nullptr) return Dropped();
    const uint64_t state = slot->state.load(std::memory_order_relaxed);
    if (GenerationOf(state) != locator.generation ||
        (state & (kResident | kHot)) != (kResident | kHot))
      return Dropped();
    const ChunkSummary what = slot->what;
    const bool for_everyone = slot->for_everyone.load(std::memory_order_relaxed);
    // Kept through the exchange of slots: a session that opens meanwhile must find the geometry.
    geometries_.AddUse(what.geometry);
    const absl::Cleanup end_use = [&] { geometries_.RemoveUse(what.geometry); };
    free = TakeOut(locator.slot);
    // In addition to chunk_count_max, while the old slot is being read.
    if (used_slot_count_ < chunk_count_max_ + kChilledCountMax) {
      const uint32_t index = TakeSlot(what, for_everyone);
      slots_.At(index)->durable = true;
      ledger_.FactsNotSaved(what.id);
      cold_count_ += 1;
      Publish(index, /*hot=*/false);
    } else {
      ledger_.Close(what.id, {}).IgnoreError();
      status = absl::ResourceExhaustedError("chunk table: too many slots are still being read");
    }
  }
  if (free) Free(locator.slot);
  return status;
}

bool ChunkTable::IsDurable(const ChunkId& id) const {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  return found && slots_.At(*found)->durable;
}

void ChunkTable::MarkDurable(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found || slots_.At(*found)->durable) return;
  slots_.At(*found)->durable = true;
  ledger_.FactsNotSaved(id);
  RequeueSlot(*found);
}

void ChunkTable::SetEvictable(const ChunkId& id, bool evictable) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint32_t> found = SlotOf(id);
  if (!found) return;
  slots_.At(*found)->held_back = !evictable;
  RequeueSlot(*found);
}

void ChunkTable::Requeue(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  if (const std::optional<uint32_t> found = SlotOf(id)) RequeueSlot(*found);
}

void ChunkTable::RequeueSlot(uint32_t index) {
  const ChunkSlot& slot = *slots_.At(index);
  const bool hot = (slot.state.load(std::memory_order_relaxed) & kHot) != 0;
  if (!hot || !slot.durable || slot.held_back || ledger_.IsKept(slot.what.id)) {
    evictable_.Remove(index);
  } else if (!evictable_.Has(index)) {
    evictable_.Add(index, slot.bytes(), /*cost_us=*/double(slot.bytes()));
  }
}

std::vector<ChunkListing> ChunkTable::List(const std::optional<ChunkId>& after,
                                           size_t count_max) const {
  std::vector<ChunkListing> listings;
  {
    absl::MutexLock lock(&mu_);
    auto entry = after ? in_order_.upper_bound(*after) : in_order_.begin();
    for (; entry != in_order_.end() && listings.size() < count_max; ++entry) {
      const ChunkSlot& slot = *slots_.At(entry->second);
      const uint64_t state = slot.state.load(std::memory_order_relaxed);
      listings.push_back({.id = slot.what.id,
                          .position = slot.what.position,
                          .token_count = slot.what.token_count,
                          .bytes = slot.bytes(),
                          .pin_count = static_cast<uint32_t>(state & kPinsMask),
                          .hot = (state & kHot) != 0,
                          .durable = slot.durable});
    }
  }
  for (ChunkListing& listing : listings) {
    const ChunkLedger::Glance said = ledger_.GlanceAt(listing.id);
    listing.kept = said.kept;
    listing.idle = said.idle;
  }
  return listings;
}

ChunkTableStats ChunkTable::stats() const {
  ChunkTableStats stats;
  stats.used_bytes = arena_->used_bytes();
  stats.capacity_bytes = arena_->capacity_bytes();
  absl::MutexLock lock(&mu_);
  stats.chunk_count = in_order_.size();
  stats.token_count = token_count_;
  stats.cold_count = cold_count_;
  stats.evicted_count = evicted_count_;
  // Pins are counted in their slots, so that they share nothing: 100,000 slots take 0.2 ms.
  for (uint32_t i = 0; i < slot_end_; ++i)
    stats.pin_count += slots_.At(i)->state.load(std::memory_order_relaxed) & kPinsMask;
  return stats;
}

}  // namespace ckv
