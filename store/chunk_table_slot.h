// What a chunk table keeps of each chunk. Included by the table's own sources only.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
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
  const Geometry* geometry = nullptr;  // what.geometry
  std::atomic<uint32_t> use_count{0};  // pins since an eviction last looked
  bool for_everyone = false;           // "" is a reader: most chunks, told without the names
  bool durable = false;
  bool facts_unsaved = false;
  // Written, as the three before it, under mu_ and the id's shard, so that either is enough to
  // read.
  ColdChunk what;
  // When it was put or asked for last. Guarded by mu_. With it a slot fills two lines of cache.
  Instant touched;

  bool Readable(std::string_view tenant) const {
    return for_everyone || std::any_of(what.readers.begin(), what.readers.end(),
                                       [tenant](const std::string& reader) {
                                         return reader.empty() || reader == tenant;
                                       });
  }
  uint64_t bytes() const { return LayOutChunk(*what.geometry, what.token_count).total_bytes; }
};

// Ids are hashes: eight bytes of one tell them apart as well as all do. Salted, since who puts
// chunks could look for tokens whose ids begin alike.
struct IdHash {
  size_t operator()(const ChunkId& id) const {
    uint64_t part;
    std::memcpy(&part, id.bytes.data(), sizeof(part));
    return absl::Hash<uint64_t>()(part);
  }
};

struct alignas(64) ChunkTable::Shard {
  absl::Mutex mu;
  absl::flat_hash_map<ChunkId, uint32_t, IdHash> by_id ABSL_GUARDED_BY(mu);
};

}  // namespace ckv
