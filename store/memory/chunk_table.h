// Finds the chunks of one holder by id: where their rows are, and the pins that keep them in place.
//
//   ChunkTable table(arena.get(), /*chunk_count_max=*/1024);
//   CKV_ASSIGN_OR_RETURN(ChunkWriter writer, table.Begin(info, geometry, "tenant-a"));
//   for (uint32_t layer = 0; layer < geometry.layers; ++layer)
//     CKV_RETURN_IF_ERROR(writer.Write(layer, /*offset_bytes=*/0, rows[layer]));
//   CKV_ASSIGN_OR_RETURN(Chunk chunk, std::move(writer).Finish());  // checksums hold, or DataLoss
//   CKV_RETURN_IF_ERROR(table.Insert(std::move(chunk), "tenant-a"));
//   CKV_ASSIGN_OR_RETURN(const ChunkPin pin, table.Pin(info.id, geometry, "tenant-a"));
//   Use(pin.chunk().layer(0));
//
// A caller that pins often (a session's handles) calls Find once and pins by the locator: one
// compare-and-swap, without a lock.
//
// A chunk is hot (its rows are in the arena) or cold (only its file has them). Only hot chunks can
// be pinned. ChunkStore (store/chunk_store.h) makes a cold chunk hot, and makes hot chunks cold
// when it needs room. If a table belongs to a store, only the store changes it. The store keeps the
// files consistent with the table, and exposes the table as const.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/ids.h"
#include "store/memory/chunk.h"
#include "store/memory/chunk_facts.h"
#include "store/memory/chunk_ledger.h"
#include "store/memory/chunk_slots.h"
#include "store/memory/eviction.h"
#include "store/memory/geometry_set.h"
#include "store/memory/id_index.h"

namespace ckv {

class ChunkTable;

// The right to read a chunk: while the pin exists, the chunk's rows stay where they are, even if
// the chunk is dropped. Movable; any thread may destroy it. The table must outlive the pin.
class ChunkPin {
 public:
  // Pins nothing.
  ChunkPin() = default;
  ChunkPin(ChunkPin&& other) noexcept;
  ChunkPin& operator=(ChunkPin&& other) noexcept;
  ~ChunkPin();

  // Valid if held().
  const Chunk& chunk() const { return *chunk_; }
  bool held() const { return chunk_ != nullptr; }

 private:
  friend class ChunkTable;
  ChunkPin(ChunkTable* table, uint32_t slot, const Chunk* chunk)
      : table_(table), slot_(slot), chunk_(chunk) {}
  ChunkTable* table_ = nullptr;
  uint32_t slot_ = 0;
  const Chunk* chunk_ = nullptr;
};

// Names a chunk's place in the table without its 32-byte id. It becomes stale when the chunk is
// dropped. It never names another chunk, because the generation differs.
struct ChunkLocator {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

// A chunk as List returns it.
struct ChunkListing {
  ChunkId id;
  uint64_t position = 0;
  uint32_t token_count = 0;
  uint64_t bytes = 0;  // bytes of its rows in memory, if it is hot
  uint32_t pin_count = 0;
  bool kept = false;
  bool hot = true;
  bool durable = false;  // it has a file
  Duration idle{0};      // since its last put or touch, or since the table was made
};

// Describes a chunk, hot or cold, without its rows.
struct ChunkSummary {
  ChunkId id;
  uint64_t position = 0;
  uint32_t token_count = 0;
  const Geometry* geometry = nullptr;  // the table's copy
  uint64_t checksums_digest = 0;       // DigestOf its layer checksums
};

// Returns XXH3-64 of a chunk's layer checksums. A putter that supplies the same digest has the
// rows.
uint64_t DigestOf(std::span<const uint64_t> tensor_checksums);

struct ChunkTableStats {
  uint64_t chunk_count = 0;     // hot and cold
  uint64_t token_count = 0;     // tokens of these chunks
  uint64_t used_bytes = 0;      // used in the arena, by chunks and by chunks being written
  uint64_t capacity_bytes = 0;  // size of the arena
  uint64_t pin_count = 0;
  uint64_t cold_count = 0;     // part of chunk_count
  uint64_t evicted_count = 0;  // since the table was made
};

// Thread-safe. Every pin must be gone before the table is destroyed.
class ChunkTable {
 public:
  // `arena` backs every row. It must outlive the table, as must `clock`.
  ChunkTable(Arena* arena, uint32_t chunk_count_max, Clock* clock = Clock::Real());
  ~ChunkTable();
  ChunkTable(const ChunkTable&) = delete;
  ChunkTable& operator=(const ChunkTable&) = delete;

  // --- Look-up and reading. ---

  // Returns where the chunk is, if `tenant` may read it.
  //   NotFound            the chunk is not here, so the caller's directory entry is stale; or the
  //                       tenant may not read it. The caller cannot distinguish the two.
  //   FailedPrecondition  the chunk is here with another geometry; retrying cannot help.
  // A look-up is faster with the table's own copy of the geometry (geometries().Find), because it
  // then compares one address instead of all fields.
  absl::StatusOr<ChunkLocator> Find(const ChunkId& id, const Geometry& geometry,
                                    std::string_view tenant = "") const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns where the chunk is, whether or not a tenant may read it.
  //   NotFound            the chunk is not here.
  absl::StatusOr<ChunkLocator> Locate(const ChunkId& id) const;
  // Returns whether the chunk is here, hot or cold, whether or not a tenant may read it.
  bool Contains(const ChunkId& id) const { return SlotOf(id).has_value(); }

  // Pins the chunk for reading. Takes no lock.
  //   NotFound            the chunk was dropped since it was found; look it up again.
  //   Unavailable         the chunk is cold: ChunkStore::Load reads its rows.
  absl::StatusOr<ChunkPin> Pin(ChunkLocator locator) const;
  // Returns whether Pin would succeed. Takes one load.
  bool IsHot(ChunkLocator locator) const;
  // Finds and pins the chunk.
  //   NotFound, FailedPrecondition  as for Find.
  //   NotFound, Unavailable         as for Pin by a locator.
  absl::StatusOr<ChunkPin> Pin(const ChunkId& id, const Geometry& geometry,
                               std::string_view tenant = "") const;

  // Describes the chunk, hot or cold.
  //   NotFound            the chunk was dropped since it was found.
  absl::StatusOr<ChunkSummary> Describe(ChunkLocator locator) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether the chunk is here and has its file.
  bool IsDurable(const ChunkId& id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns at most `count_max` chunks in the order of their ids, beginning after `after`, or with
  // the first if `after` is unset. Returns chunks of all tenants, so it is for operators, not for
  // sessions.
  std::vector<ChunkListing> List(const std::optional<ChunkId>& after, size_t count_max) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Counts pins slot by slot: 0.2 ms for 100,000 chunks.
  ChunkTableStats stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // The table's copies of geometries.
  const GeometrySet& geometries() const { return geometries_; }
  GeometrySet& geometries() { return geometries_; }

  // The ledger of these chunks. Call Requeue after changing a mark.
  const ChunkLedger& ledger() const { return ledger_; }
  ChunkLedger& ledger() { return ledger_; }

  // --- Putting and dropping. ---

  // Starts receiving a chunk for `tenant` into this table's arena. If the chunk is already here,
  // the tenant becomes one of its readers: its checksums prove that it has the rows.
  //   AlreadyExists       the chunk is here and the tenant may read it. Send nothing.
  //   DataLoss            the chunk is here for other tenants, with other checksums.
  //   ResourceExhausted   the arena has no room; or there are chunk_count_max chunks,
  //                       GeometrySet::kCountMax geometries, or ChunkLedger::kReaderCountMax
  //                       readers.
  //   InvalidArgument     the info or the geometry is not valid (ValidateChunkInfo).
  absl::StatusOr<ChunkWriter> Begin(ChunkInfo info, const Geometry& geometry,
                                    std::string_view tenant = "") ABSL_LOCKS_EXCLUDED(mu_);
  // Publishes a complete chunk, whose geometry is this table's copy; from now on it can be pinned.
  // A `durable` chunk has its file, so it may become cold. With a `ttl` above zero, the chunk
  // expires if it is not put again within that time. On error the table keeps its chunks; only
  // AlreadyExists changes the ledger.
  //   AlreadyExists       the chunk was inserted meanwhile; the tenant may read it, as for Begin.
  //   DataLoss            the chunk was inserted meanwhile for other tenants, with other checksums.
  //   ResourceExhausted   there are chunk_count_max chunks or kReaderCountMax readers.
  absl::Status Insert(Chunk chunk, std::string_view tenant = "", bool durable = false,
                      Duration ttl = Duration(0)) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the chunk from the table if `only` allows it: no new pin finds it, for any reader. Its
  // memory is freed when the last pin is destroyed.
  //   NotFound            the chunk is not here.
  //   FailedPrecondition  a condition of `only` does not hold; the chunk stays.
  absl::Status Drop(const ChunkId& id, const DropIf& only = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // --- Between memory and disk: for ChunkStore. ---

  // Publishes a cold chunk that was found on disk, with its saved facts.
  //   AlreadyExists       the chunk is here.
  //   ResourceExhausted   there are chunk_count_max chunks.
  absl::Status InsertCold(const ChunkSummary& chunk, const ChunkFacts& facts)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes a cold chunk hot. `cost_us` is the time that reading it again would take.
  //   NotFound            the chunk was dropped meanwhile, or is already hot.
  absl::Status Warm(ChunkLocator locator, Chunk chunk, double cost_us) ABSL_LOCKS_EXCLUDED(mu_);
  struct Evicted {
    ChunkLocator locator;
    Chunk chunk;
  };
  // Makes one hot chunk cold and returns its memory: the one cheapest to evict among those that are
  // durable, evictable, not kept and not pinned. Returns nothing if there is no such chunk.
  std::optional<Evicted> EvictOne() ABSL_LOCKS_EXCLUDED(mu_);
  // Stops using the rows in memory, because they are damaged and the file is intact. The chunk
  // becomes cold in another slot, so that no earlier locator finds it. Its readers, marks and times
  // stay and count as unsaved.
  //   NotFound            the chunk was dropped, or is cold.
  //   ResourceExhausted   too many chilled slots are still being read; the chunk is dropped.
  absl::Status Chill(ChunkLocator locator) ABSL_LOCKS_EXCLUDED(mu_);

  // Records that the chunk now has its file. Does nothing if the chunk is not here.
  void MarkDurable(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets whether eviction may take a durable chunk. Pass false while memory has its only intact
  // copy. Does nothing if the chunk is not here.
  void SetEvictable(const ChunkId& id, bool evictable) ABSL_LOCKS_EXCLUDED(mu_);
  // Applies a change of the chunk's mark in the ledger to eviction.
  void Requeue(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns a counter that increases whenever a chunk is added or removed. Takes no lock.
  uint64_t change_count() const { return change_count_.load(std::memory_order_acquire); }

 private:
  friend class ChunkPin;
  uint64_t HashOf(const ChunkId& id) const;
  void Unpin(uint32_t index);
  void Free(uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns OK if the chunk is new. If it is here and its checksums match, makes `tenant` a reader.
  absl::Status CheckNew(const ChunkInfo& info, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the chunk from everything but the ledger. Returns whether its slot is to be freed.
  bool TakeOut(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns a slot that describes a new chunk and is not published yet.
  uint32_t TakeSlot(const ChunkSummary& chunk, bool for_everyone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish(uint32_t index, bool hot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RequeueSlot(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<uint32_t> SlotOf(const ChunkId& id) const;

  Arena* const arena_;
  const uint32_t chunk_count_max_;
  const uint64_t salt_;     // salts the hashes, so that a putter cannot search for colliding ids
  IdIndex index_;           // written under mu_
  GeometrySet geometries_;  // its lock is taken after mu_
  // Under mu_, an entry is opened before its chunk is published and closed before the chunk is
  // removed. The ledger's own locks are taken after mu_.
  ChunkLedger ledger_;
  ChunkSlots slots_;
  mutable absl::Mutex mu_;
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mu_);
  uint32_t slot_end_ ABSL_GUARDED_BY(mu_) = 0;         // slots below it are allocated
  uint32_t used_slot_count_ ABSL_GUARDED_BY(mu_) = 0;  // resident, or dropped and still pinned
  uint64_t token_count_ ABSL_GUARDED_BY(mu_) = 0;      // tokens of resident chunks
  uint64_t cold_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t evicted_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<uint64_t> change_count_{0};  // written under mu_
  // In the order of ids, so that a page of List does not hold the lock for a scan of the table.
  absl::btree_map<ChunkId, uint32_t> in_order_ ABSL_GUARDED_BY(mu_);
  EvictionQueue evictable_ ABSL_GUARDED_BY(mu_);  // hot, durable, not kept and not held back
};

}  // namespace ckv
