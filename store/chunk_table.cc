#include "store/chunk_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"

namespace ckv {

// A slot is free (no chunk), resident (in by_id_), or draining: dropped, but still pinned.
struct ChunkTable::Slot {
  std::unique_ptr<const Chunk> chunk;  // behind a pointer, so that slots may move under pins
  uint32_t generation = 0;             // raised by Drop, so every locator to it is stale
  uint32_t pin_count = 0;
  bool resident = false;
  bool kept = false;
  std::vector<std::string> readers;  // tenants; "" alone where everyone may read

  bool Readable(std::string_view tenant) const {
    return std::any_of(readers.begin(), readers.end(), [tenant](const std::string& reader) {
      return reader.empty() || reader == tenant;
    });
  }
};

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

ChunkTable::ChunkTable(Arena* arena, uint32_t chunk_count_max)
    : arena_(arena), chunk_count_max_(chunk_count_max) {}

ChunkTable::~ChunkTable() {
  absl::MutexLock lock(&mu_);
  CKV_CHECK(pin_count_ == 0);  // a pin that outlives its table points into nothing
}

absl::StatusOr<const Geometry*> ChunkTable::Intern(const Geometry& geometry) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  absl::MutexLock lock(&mu_);
  for (const InternedGeometry& interned : geometries_) {
    if (*interned.geometry == geometry) return interned.geometry.get();
  }
  if (geometries_.size() == kGeometryCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("chunk table: already %d geometries", kGeometryCountMax));
  }
  geometries_.push_back({std::make_unique<const Geometry>(geometry)});
  return geometries_.back().geometry.get();
}

absl::Status ChunkTable::CheckNew(const ChunkInfo& info, std::string_view tenant) {
  if (const auto found = by_id_.find(info.id); found != by_id_.end()) {
    Slot& slot = slots_[found->second];
    if (!slot.Readable(tenant)) {
      if (info.layer_checksums != slot.chunk->info().layer_checksums) {
        return absl::DataLossError(absl::StrFormat(
            "chunk %s: its rows are not those that others put here", info.id.ShortHex()));
      }
      if (tenant.empty()) slot.readers.clear();
      if (slot.readers.size() == kReaderCountMax) {
        return absl::ResourceExhaustedError(
            absl::StrFormat("chunk %s: already of %d tenants: put it for everyone",
                            info.id.ShortHex(), kReaderCountMax));
      }
      slot.readers.emplace_back(tenant);
    }
    return absl::AlreadyExistsError(absl::StrFormat("chunk %s is resident", info.id.ShortHex()));
  }
  if (used_slot_count_ >= chunk_count_max_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("chunk table: full with %d chunks", used_slot_count_));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChunkWriter> ChunkTable::Begin(ChunkInfo info, const Geometry& geometry,
                                              std::string_view tenant) {
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(CheckNew(info, tenant));
  }
  // Before it is interned, which is for ever: a malformed chunk must not use up a geometry.
  CKV_RETURN_IF_ERROR(ValidateChunkInfo(info, geometry));
  CKV_ASSIGN_OR_RETURN(const Geometry* interned, Intern(geometry));
  return ChunkWriter::Begin(std::move(info), interned, arena_);
}

absl::Status ChunkTable::Insert(Chunk chunk, std::string_view tenant) {
  const ChunkId id = chunk.info().id;
  absl::MutexLock lock(&mu_);
  CKV_RETURN_IF_ERROR(CheckNew(chunk.info(), tenant));
  Interned(&chunk.geometry()).chunk_count += 1;
  token_count_ += chunk.info().token_count();
  used_slot_count_ += 1;
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.chunk = std::make_unique<const Chunk>(std::move(chunk));
  slot.resident = true;
  slot.kept = false;
  slot.readers.assign(1, std::string(tenant));
  by_id_.emplace(id, index);
  in_order_.emplace(id, index);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ChunkTable::FindSlot(const ChunkId& id, const Geometry& geometry,
                                              std::string_view tenant) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || !slots_[found->second].Readable(tenant)) {
    return absl::NotFoundError(absl::StrFormat("chunk %s is not here", id.ShortHex()));
  }
  const Geometry& resident = slots_[found->second].chunk->geometry();
  if (&resident != &geometry && resident != geometry) {
    return absl::FailedPreconditionError(absl::StrFormat("chunk %s has another geometry: %s",
                                                         id.ShortHex(),
                                                         DescribeDifference(resident, geometry)));
  }
  return found->second;
}

absl::StatusOr<ChunkLocator> ChunkTable::Find(const ChunkId& id, const Geometry& geometry,
                                              std::string_view tenant) const {
  absl::MutexLock lock(&mu_);
  CKV_ASSIGN_OR_RETURN(const uint32_t slot, FindSlot(id, geometry, tenant));
  return ChunkLocator{slot, slots_[slot].generation};
}

ChunkPin ChunkTable::PinSlot(uint32_t slot) {
  slots_[slot].pin_count += 1;
  pin_count_ += 1;
  return ChunkPin(this, slot, slots_[slot].chunk.get());
}

absl::StatusOr<ChunkPin> ChunkTable::Pin(ChunkLocator locator) {
  absl::MutexLock lock(&mu_);
  if (locator.slot >= slots_.size() || !slots_[locator.slot].resident ||
      slots_[locator.slot].generation != locator.generation) {
    return absl::NotFoundError("the chunk was dropped since it was found");
  }
  return PinSlot(locator.slot);
}

absl::StatusOr<ChunkPin> ChunkTable::Pin(const ChunkId& id, const Geometry& geometry,
                                         std::string_view tenant) {
  absl::MutexLock lock(&mu_);
  CKV_ASSIGN_OR_RETURN(const uint32_t slot, FindSlot(id, geometry, tenant));
  return PinSlot(slot);
}

void ChunkTable::Unpin(uint32_t slot) {
  std::unique_ptr<const Chunk> freed;  // destroyed after the lock: it takes the arena's
  absl::MutexLock lock(&mu_);
  pin_count_ -= 1;
  slots_[slot].pin_count -= 1;
  if (slots_[slot].pin_count == 0 && !slots_[slot].resident) freed = Release(slot);
}

std::unique_ptr<const Chunk> ChunkTable::Release(uint32_t slot) {
  used_slot_count_ -= 1;
  // A slot whose generations are used up is retired: a locator is never valid twice.
  if (slots_[slot].generation != UINT32_MAX) free_slots_.push_back(slot);
  return std::move(slots_[slot].chunk);
}

absl::Status ChunkTable::Keep(const ChunkId& id, bool keep) {
  absl::MutexLock lock(&mu_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    return absl::NotFoundError(absl::StrFormat("chunk %s is not here", id.ShortHex()));
  }
  slots_[found->second].kept = keep;
  return absl::OkStatus();
}

absl::Status ChunkTable::Drop(const ChunkId& id) { return Remove(id, /*even_kept=*/true); }

absl::Status ChunkTable::Evict(const ChunkId& id) { return Remove(id, /*even_kept=*/false); }

absl::Status ChunkTable::Remove(const ChunkId& id, bool even_kept) {
  std::unique_ptr<const Chunk> freed;  // destroyed after the lock: it takes the arena's
  absl::MutexLock lock(&mu_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    return absl::NotFoundError(absl::StrFormat("chunk %s is not here", id.ShortHex()));
  }
  const uint32_t index = found->second;
  if (slots_[index].kept && !even_kept) {
    return absl::FailedPreconditionError(absl::StrFormat("chunk %s is kept", id.ShortHex()));
  }
  in_order_.erase(id);
  by_id_.erase(found);
  Slot& slot = slots_[index];
  token_count_ -= slot.chunk->info().token_count();
  Interned(&slot.chunk->geometry()).chunk_count -= 1;
  slot.resident = false;
  slot.generation += 1;
  if (slot.pin_count == 0) freed = Release(index);
  return absl::OkStatus();
}

bool ChunkTable::Contains(const ChunkId& id) const {
  absl::MutexLock lock(&mu_);
  return by_id_.contains(id);
}

std::vector<ChunkListing> ChunkTable::List(const std::optional<ChunkId>& after,
                                           size_t count_max) const {
  std::vector<ChunkListing> listings;
  absl::MutexLock lock(&mu_);
  auto entry = after ? in_order_.upper_bound(*after) : in_order_.begin();
  for (; entry != in_order_.end() && listings.size() < count_max; ++entry) {
    const Slot& slot = slots_[entry->second];
    const ChunkInfo& info = slot.chunk->info();
    listings.push_back({info.id, info.position, info.token_count(),
                        slot.chunk->layout().total_bytes, slot.pin_count, slot.kept});
  }
  return listings;
}

ChunkTableStats ChunkTable::stats() const {
  ChunkTableStats stats;
  stats.used_bytes = arena_->used_bytes();
  stats.capacity_bytes = arena_->capacity_bytes();
  absl::MutexLock lock(&mu_);
  stats.chunk_count = by_id_.size();
  stats.token_count = token_count_;
  stats.pin_count = pin_count_;
  return stats;
}

std::vector<Geometry> ChunkTable::geometries() const {
  std::vector<Geometry> geometries;
  absl::MutexLock lock(&mu_);
  for (const InternedGeometry& interned : geometries_) {
    if (interned.chunk_count > 0) geometries.push_back(*interned.geometry);
  }
  return geometries;
}

ChunkTable::InternedGeometry& ChunkTable::Interned(const Geometry* geometry) {
  const auto interned = std::find_if(
      geometries_.begin(), geometries_.end(),
      [geometry](const InternedGeometry& other) { return other.geometry.get() == geometry; });
  CKV_CHECK(interned != geometries_.end());
  return *interned;
}

}  // namespace ckv
