// What a chunk table keeps of each chunk. Included by the table's own sources only.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "store/chunk_table.h"

namespace ckv {

// A slot's state, in one word, so that a pin and what may end it are one atomic step each:
// generation in the upper half, then whether it is resident, whether its rows are in memory, and
// the pins. Generations rise with every drop, so every locator to what was dropped is stale.
inline constexpr uint64_t kPinsMask = (uint64_t{1} << 30) - 1;
inline constexpr uint64_t kHot = uint64_t{1} << 30;
inline constexpr uint64_t kResident = uint64_t{1} << 31;
constexpr uint32_t GenerationOf(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
constexpr uint64_t WithGeneration(uint32_t generation) { return uint64_t{generation} << 32; }

inline absl::Status NotHere(const ChunkId& id) {
  return absl::NotFoundError(absl::StrFormat("chunk %s is not here", id.ShortHex()));
}

// Free (not resident, no pins), resident, or draining: dropped, but still pinned.
struct alignas(64) ChunkTable::Slot {
  // What a look-up and a pin touch: one line of cache.
  std::atomic<uint64_t> state{0};
  // Behind a pointer that is written only while nobody can pin, and read under a pin.
  std::unique_ptr<Chunk> chunk;
  std::atomic<const Geometry*> geometry{nullptr};  // what.geometry
  std::atomic<uint32_t> use_count{0};              // pins since an eviction last looked
  // "" is a reader: most chunks, told without the names.
  std::atomic<bool> for_everyone{false};
  bool durable = false;
  bool facts_unsaved = false;
  // Written, as the two before it, under mu_ and the id's shard, so that either is enough to read.
  // Its id, first, is on the same line of cache, and is read without either: see IsOf.
  ColdChunk what;
  // When it was put or asked for last. Guarded by mu_. With it a slot fills two lines of cache.
  Instant touched;

  // What a look-up learns without a lock.
  struct Seen {
    uint32_t generation = 0;
    const Geometry* geometry = nullptr;
    bool for_everyone = false;
  };
  // Of the resident chunk `id`; absent: the slot is not its. The id's words are written while the
  // slot is not resident, so they are one id's if it was resident, in one generation, before and
  // after they were read.
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
  // While the slot is not resident, and nobody else writes it.
  void Become(ColdChunk next) {
    const ChunkId id = next.id;
    what.position = next.position;
    what.token_count = next.token_count;
    what.geometry = next.geometry;
    what.checksums_digest = next.checksums_digest;
    what.readers = std::move(next.readers);
    what.kept = next.kept;
    for (size_t i = 0; i < kIdWords; ++i) {
      uint64_t word;
      std::memcpy(&word, id.bytes.data() + 8 * i, sizeof(word));
      IdWord(i).store(word, std::memory_order_release);
    }
    geometry.store(what.geometry, std::memory_order_release);
    for_everyone.store(std::any_of(what.readers.begin(), what.readers.end(),
                                   [](const std::string& reader) { return reader.empty(); }),
                       std::memory_order_release);
  }

  static constexpr size_t kIdWords = sizeof(ChunkId) / sizeof(uint64_t);
  std::atomic_ref<uint64_t> IdWord(size_t i) const {
    auto* bytes = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&what.id));
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(bytes + 8 * i));
  }

  bool Readable(std::string_view tenant) const {
    return for_everyone.load(std::memory_order_relaxed) ||
           std::any_of(
               what.readers.begin(), what.readers.end(),
               [tenant](const std::string& reader) { return reader.empty() || reader == tenant; });
  }
  uint64_t bytes() const { return LayOutChunk(*what.geometry, what.token_count).total_bytes; }
};

// Who may read a chunk is guarded by the shard of its id: a look-up for a tenant waits for nothing
// that goes through the table.
struct alignas(64) ChunkTable::Shard {
  absl::Mutex mu;
};

}  // namespace ckv
