// The slot that a chunk table has for each chunk. Only the table's own sources include this file.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "store/memory/chunk_slots.h"
#include "store/memory/chunk_table.h"

namespace ckv {

// A slot's state in one word, so that a pin is one atomic step, and so is a change that prevents
// further pins. From the top: the generation (32 bits), a bit for resident, a bit for rows in
// memory, and the pin count (30 bits). Every drop raises the generation, so every locator of a
// dropped chunk is stale.
inline constexpr uint64_t kPinsMask = (uint64_t{1} << 30) - 1;
inline constexpr uint64_t kHot = uint64_t{1} << 30;
inline constexpr uint64_t kResident = uint64_t{1} << 31;
constexpr uint32_t GenerationOf(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
constexpr uint64_t WithGeneration(uint32_t generation) { return uint64_t{generation} << 32; }

inline absl::Status NotHere(const ChunkId& id) {
  return absl::NotFoundError(absl::StrFormat("chunk %s is not here", id.ShortHex()));
}

// A slot is free (not resident, no pins), resident, or draining (dropped, but still pinned).
struct alignas(64) ChunkSlot {
  // Look-ups and pins use these fields, which are in one cache line.
  std::atomic<uint64_t> state{0};
  // Written only while no thread can pin the slot, and read under a pin.
  std::unique_ptr<Chunk> chunk;
  std::atomic<const Geometry*> geometry{nullptr};  // what.geometry
  std::atomic<uint32_t> use_count{0};              // 1 if pinned since eviction last checked
  // Whether every tenant may read the chunk. If not, a look-up queries the ledger. Written under
  // mu_.
  std::atomic<bool> for_everyone{false};
  bool durable = false;
  bool held_back = false;  // by SetEvictable
  // Written under mu_. Its first field, the id, is in the first cache line and is read without the
  // lock; see IsOf. A slot fills two cache lines.
  ChunkSummary what;

  // The result of a look-up without a lock.
  struct Seen {
    uint32_t generation = 0;
    const Geometry* geometry = nullptr;
    bool for_everyone = false;
  };
  // Returns nothing unless the slot has the resident chunk `id`. The id's words are written only
  // while the slot is not resident. So they belong to one id if the slot was resident, in one
  // generation, before and after they were read.
  std::optional<Seen> IsOf(const ChunkId& id) const {
    const uint64_t before = state.load(std::memory_order_acquire);
    if ((before & kResident) == 0) return std::nullopt;
    for (size_t i = 0; i < kIdWords; ++i) {
      uint64_t word;
      std::memcpy(&word, id.bytes.data() + 8 * i, sizeof(word));
      if (IdWord(i).load(std::memory_order_acquire) != word) return std::nullopt;
    }
    const Seen seen = {GenerationOf(before), geometry.load(std::memory_order_acquire),
                       for_everyone.load(std::memory_order_acquire)};
    const uint64_t after = state.load(std::memory_order_relaxed);
    if (GenerationOf(after) != seen.generation || (after & kResident) == 0) return std::nullopt;
    return seen;
  }
  // Writes the facts of a new chunk. Called while the slot is not resident and no other thread
  // writes it.
  void Become(const ChunkSummary& next, bool readable_by_everyone) {
    const ChunkId id = next.id;
    what.position = next.position;
    what.token_count = next.token_count;
    what.geometry = next.geometry;
    what.checksums_digest = next.checksums_digest;
    for (size_t i = 0; i < kIdWords; ++i) {
      uint64_t word;
      std::memcpy(&word, id.bytes.data() + 8 * i, sizeof(word));
      IdWord(i).store(word, std::memory_order_release);
    }
    geometry.store(what.geometry, std::memory_order_release);
    for_everyone.store(readable_by_everyone, std::memory_order_release);
  }

  static constexpr size_t kIdWords = sizeof(ChunkId) / sizeof(uint64_t);
  std::atomic_ref<uint64_t> IdWord(size_t i) const {
    auto* bytes = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&what.id));
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(bytes + 8 * i));
  }

  uint64_t bytes() const { return ChunkLayout(*what.geometry, what.token_count).total_bytes(); }
};

inline ChunkSlots::ChunkSlots(uint32_t count_max)
    : segments_(new std::atomic<ChunkSlot*>[count_max / kSegmentSlots + 2]()),
      segment_count_(count_max / kSegmentSlots + 2) {}

inline ChunkSlots::~ChunkSlots() {
  for (uint32_t i = 0; i < segment_count_; ++i) delete[] segments_[i].load();
}

inline ChunkSlot* ChunkSlots::At(uint32_t index) const {
  if (index / kSegmentSlots >= segment_count_) return nullptr;
  ChunkSlot* segment = segments_[index / kSegmentSlots].load(std::memory_order_acquire);
  return segment == nullptr ? nullptr : segment + index % kSegmentSlots;
}

inline void ChunkSlots::Add(uint32_t index) {
  std::atomic<ChunkSlot*>& segment = segments_[index / kSegmentSlots];
  if (segment.load(std::memory_order_relaxed) == nullptr)
    segment.store(new ChunkSlot[kSegmentSlots], std::memory_order_release);
}

}  // namespace ckv
