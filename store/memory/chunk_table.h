// Maps the chunks this holder owns to their rows, which are in memory or on disk.
//
//   ChunkTable table(arena.get(), /*chunk_count_max=*/1024);
//   CKV_ASSIGN_OR_RETURN(ChunkWriter writer, table.Begin(info, geometry, "tenant-a"));
//   for (uint32_t layer = 0; layer < geometry.layers; ++layer)
//     CKV_RETURN_IF_ERROR(writer.Write(layer, /*offset_bytes=*/0, rows[layer]));
//   CKV_ASSIGN_OR_RETURN(Chunk chunk, std::move(writer).Finish());  // checksums hold, or DataLoss
//   CKV_RETURN_IF_ERROR(table.Insert(std::move(chunk), "tenant-a"));
//   CKV_ASSIGN_OR_RETURN(const ChunkPin pin, table.Pin(info.id, geometry, "tenant-a"));
//   read(pin.chunk().layer(0));
//
// Whoever pins often (a session's handles) asks Find once and pins by the locator: one compare and
// swap, without a lock.
//
// A chunk is hot (its rows are in the arena) or cold (they are in its file alone). Only hot chunks
// are pinned; store/chunk_store.h makes a cold one hot, and hot ones cold where room is needed.

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
#include "proto/clock.h"
#include "proto/ids.h"
#include "store/chunk.h"
#include "store/chunk_expiry.h"
#include "store/chunk_facts.h"
#include "store/eviction.h"
#include "store/id_index.h"

namespace ckv {

class ChunkTable;

// The right to read a chunk: while it lives the chunk's rows stay where they are. Movable. The
// table must outlive it.
class ChunkPin {
 public:
  ChunkPin() = default;
  ChunkPin(ChunkPin&& other) noexcept;
  ChunkPin& operator=(ChunkPin&& other) noexcept;
  ~ChunkPin();

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

// Names a chunk's place in the table without its 32-byte id; stale once the chunk was dropped, and
// never reused for another (the generation sees to that).
struct ChunkLocator {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

// A chunk's place among its peers, for lists.
struct ChunkListing {
  ChunkId id;
  uint64_t position = 0;
  uint32_t token_count = 0;
  uint64_t bytes = 0;
  uint32_t pin_count = 0;
  bool kept = false;
  bool hot = true;
  bool durable = false;
  Duration idle{0};  // since it was put or touched last; at most since the table was made
};

// A chunk whose rows are in its file.
struct ColdChunk {
  ChunkId id;
  uint64_t position = 0;
  uint32_t token_count = 0;
  const Geometry* geometry = nullptr;  // interned
  uint64_t checksums_digest = 0;       // DigestOf its layer checksums
  std::vector<std::string> readers;
  bool kept = false;
};

// XXH3-64 over a chunk's layer checksums: whoever gives the same knows the rows.
uint64_t DigestOf(std::span<const uint64_t> layer_checksums);

struct ChunkTableStats {
  uint64_t chunk_count = 0;
  uint64_t token_count = 0;
  uint64_t used_bytes = 0;
  uint64_t capacity_bytes = 0;
  uint64_t pin_count = 0;
  uint64_t cold_count = 0;     // of chunk_count
  uint64_t evicted_count = 0;  // since the table was made
};

// Thread-safe.
class ChunkTable {
 public:
  // `arena` backs every row and must outlive the table, as must `clock`.
  ChunkTable(Arena* arena, uint32_t chunk_count_max, Clock* clock = Clock::Real());
  ~ChunkTable();
  ChunkTable(const ChunkTable&) = delete;
  ChunkTable& operator=(const ChunkTable&) = delete;

  // The one copy of `geometry` that this table's chunks point to; lives as long as the table.
  //   InvalidArgument     ValidateGeometry.
  //   ResourceExhausted   kGeometryCountMax distinct ones already.
  absl::StatusOr<const Geometry*> Intern(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kGeometryCountMax = 64;
  // That copy, if there is one; else null. Find is faster with it, by a comparison of all fields.
  const Geometry* FindInterned(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);

  // A chunk's readers are the tenants that it was put for; "" is everyone. An id names inputs that
  // others may guess, so to know it gives no right to the rows (I6).
  static constexpr size_t kReaderCountMax = 64;

  // Starts receiving a chunk, put for `tenant`, into this table's arena.
  //   AlreadyExists       the id is resident and readable by the tenant, which it may have become
  //                       just now: its checksums show that it knows the rows. Nothing to send.
  //   DataLoss            the id is resident for others, with other checksums.
  //   ResourceExhausted   no room for it, chunk_count_max, or kReaderCountMax.
  //   InvalidArgument     ChunkWriter::Begin.
  absl::StatusOr<ChunkWriter> Begin(ChunkInfo info, const Geometry& geometry,
                                    std::string_view tenant = "") ABSL_LOCKS_EXCLUDED(mu_);

  // Publishes a whole chunk, whose geometry this table interned; from here on it can be pinned. On
  // error the table is unchanged.
  //   AlreadyExists       the id became resident meanwhile; the tenant may read it, as for Begin.
  //   DataLoss            as Begin.
  //   ResourceExhausted   chunk_count_max, or kReaderCountMax.
  // A `durable` chunk has its file, so it may become cold. With a `ttl` it is dropped when nobody
  // put it again for so long.
  absl::Status Insert(Chunk chunk, std::string_view tenant = "", bool durable = false,
                      Duration ttl = Duration(0)) ABSL_LOCKS_EXCLUDED(mu_);
  // The same of a chunk that was found on disk, whose info was checked; its readers too.
  //   AlreadyExists, ResourceExhausted
  absl::Status InsertCold(ColdChunk chunk) ABSL_LOCKS_EXCLUDED(mu_);
  // A cold chunk is hot from now on; `cost_us` is what reading it again would take.
  //   NotFound            dropped meanwhile, or hot already.
  absl::Status Warm(ChunkLocator locator, Chunk chunk, double cost_us) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the hot chunk cold that is cheapest to do without, of those that are durable, not kept
  // and not pinned; its memory is what is returned. Absent: there is none.
  struct Evicted {
    ChunkLocator locator;
    Chunk chunk;
  };
  std::optional<Evicted> EvictOne() ABSL_LOCKS_EXCLUDED(mu_);

  //   NotFound            not resident here, so that the caller's directory entry is stale; or not
  //                       the tenant's to read: the two look the same.
  //   FailedPrecondition  resident with another geometry; retrying cannot help.
  absl::StatusOr<ChunkLocator> Find(const ChunkId& id, const Geometry& geometry,
                                    std::string_view tenant = "") const ABSL_LOCKS_EXCLUDED(mu_);

  // Pins the chunk for reading.
  //   NotFound            dropped since it was found; resolve it again.
  //   Unavailable         cold: its rows have to be read first.
  absl::StatusOr<ChunkPin> Pin(ChunkLocator locator);
  // What the chunk is, hot or cold.
  //   NotFound            as Pin.
  absl::StatusOr<ColdChunk> Describe(ChunkLocator locator) const ABSL_LOCKS_EXCLUDED(mu_);
  //   as Find.
  absl::StatusOr<ChunkPin> Pin(const ChunkId& id, const Geometry& geometry,
                               std::string_view tenant = "") ABSL_LOCKS_EXCLUDED(mu_);

  // Keep, Drop, Contains and List take no tenant: they are the operator's, who owns the memory and
  // sees all of it, and are reached over the holder's control plane, not by a session. A chunk is
  // stored once for all its readers, so it is dropped for all of them.

  // Marks the chunk as never to be evicted (or lifts the mark). Drop still removes it. A cold one
  // stays so until it is read.
  //   NotFound
  absl::Status Keep(const ChunkId& id, bool keep) ABSL_LOCKS_EXCLUDED(mu_);
  // The mark ends by itself after `time`; of several, the last one holds.
  absl::Status KeepFor(const ChunkId& id, Duration time) ABSL_LOCKS_EXCLUDED(mu_);

  // A resident chunk was put again, with this ttl: 0 makes it stay for good, and what stays for
  // good goes on to; else the later of its two ends holds.
  //   NotFound
  absl::Status PutAgain(const ChunkId& id, Duration ttl) ABSL_LOCKS_EXCLUDED(mu_);
  // A chunk that was found on disk goes on with the times that were saved of it.
  void RestoreTimes(const ChunkId& id, const ChunkFacts& facts) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the marks whose time is over, kMarkEndCountMax of them at most, and names a chunk whose
  // ttl ran out and that is not kept: DropExpired takes it, unless it was put again or kept since.
  std::optional<ChunkId> NextExpired() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr int kMarkEndCountMax = 256;
  //   NotFound
  //   FailedPrecondition  kept, or put again.
  absl::Status DropExpired(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the chunk out of the table: no new pin finds it. Its memory is freed when the last pin
  // goes.
  //   NotFound
  absl::Status Drop(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Drop, but not of what must stay.
  //   NotFound
  //   FailedPrecondition  the chunk is marked by Keep.
  absl::Status DropUnlessKept(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // DropUnlessKept of what nobody put or touched for `idle_min`; whoever was told that the chunk is
  // here, and touched it for that, finds it for so long.
  //   FailedPrecondition  marked by Keep, or put or touched since.
  absl::Status DropIdle(const ChunkId& id, Duration idle_min) ABSL_LOCKS_EXCLUDED(mu_);
  // Its idle time starts anew, as a put starts it, also one that finds the chunk here. False: it is
  // not resident. Idle times do not outlive the table: what was found on disk is as if put then.
  bool Touch(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Its readers and its mark, if they changed since it was put or since this last returned them:
  // whoever keeps them elsewhere saves them then, or says that they are not saved.
  std::optional<ChunkFacts> UnsavedFacts(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  void FactsNotSaved(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the chunk is resident and has its file; and that it has it now.
  bool IsDurable(const ChunkId& id) const ABSL_LOCKS_EXCLUDED(mu_);
  void MarkDurable(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a durable chunk may be evicted: not while memory has its only whole copy.
  void SetEvictable(const ChunkId& id, bool evictable) ABSL_LOCKS_EXCLUDED(mu_);
  // The rows in memory are not to be used, those in the file are: the chunk becomes cold, in a
  // place of its own, so that no locator of before finds it. Its readers, marks and times stay,
  // unsaved.
  //   NotFound            dropped, or cold.
  //   ResourceExhausted   too many such slots are still being read: it is gone from here.
  absl::Status Chill(ChunkLocator locator) ABSL_LOCKS_EXCLUDED(mu_);

  // Where the chunk is, whoever may read it.
  //   NotFound
  absl::StatusOr<ChunkLocator> Locate(const ChunkId& id) const;
  // Whether the chunk is resident, hot or cold, whoever may read it.
  bool Contains(const ChunkId& id) const { return SlotOf(id).has_value(); }

  // In the order of ids, after `after`, at most `count_max`.
  std::vector<ChunkListing> List(const std::optional<ChunkId>& after, size_t count_max) const
      ABSL_LOCKS_EXCLUDED(mu_);
  ChunkTableStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // The geometries of resident chunks; empty while the table is.
  std::vector<Geometry> geometries() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ChunkPin;
  struct Slot;
  struct Shard;
  static constexpr uint32_t kSegmentSlots = 1024;
  static constexpr uint32_t kShardCount = 64;

  struct InternedGeometry {
    std::unique_ptr<const Geometry> geometry;
    uint64_t chunk_count = 0;  // resident chunks that have it
  };

  Slot* SlotAt(uint32_t index) const;
  Shard& ShardOf(const ChunkId& id) const;
  uint64_t HashOf(const ChunkId& id) const;
  void Unpin(uint32_t index);
  void Free(uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);
  // Why it may go.
  struct RemoveIf {
    bool even_kept = false;
    Duration idle_min{0};
    bool expired_only = false;
  };
  absl::Status Remove(const ChunkId& id, const RemoveIf& only) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckMayGo(const Slot& slot, const RemoveIf& only) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SetKept(const ChunkId& id, bool keep, Instant until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // OK if `info` is to be stored; if it is resident, `tenant` becomes a reader where it may.
  absl::Status CheckNew(const ChunkInfo& info, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Out of the table, but for its times. Returns whether its slot is to be freed.
  bool TakeOut(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoom() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // A slot for a chunk that is not resident, described but not yet published.
  uint32_t TakeSlot(ColdChunk chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish(uint32_t index, bool hot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<uint32_t> SlotOf(const ChunkId& id) const;
  bool ReadableBy(const ChunkId& id, std::string_view tenant) const;
  InternedGeometry& Interned(const Geometry* geometry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Arena* const arena_;
  Clock* const clock_;
  const uint32_t chunk_count_max_;
  // Slots never move, so that a pin needs no lock; a segment is made when its first slot is.
  std::unique_ptr<std::atomic<Slot*>[]> segments_;
  const uint32_t segment_count_;
  const uint64_t salt_;  // of the hashes: whoever puts chunks could look for ids that begin alike
  IdIndex index_;        // written under mu_
  // Taken after mu_ where both are.
  std::unique_ptr<Shard[]> shards_;
  mutable absl::Mutex mu_;
  std::vector<InternedGeometry> geometries_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mu_);
  uint32_t slot_end_ ABSL_GUARDED_BY(mu_) = 0;         // slots below have been made
  uint32_t used_slot_count_ ABSL_GUARDED_BY(mu_) = 0;  // resident, or dropped and still pinned
  uint64_t token_count_ ABSL_GUARDED_BY(mu_) = 0;      // of resident chunks
  uint64_t cold_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t evicted_count_ ABSL_GUARDED_BY(mu_) = 0;
  // In the order of ids, so that a page of List does not hold the lock for a scan of the table.
  absl::btree_map<ChunkId, uint32_t> in_order_ ABSL_GUARDED_BY(mu_);
  ChunkExpiry expiry_ ABSL_GUARDED_BY(mu_);       // of resident chunks
  EvictionQueue evictable_ ABSL_GUARDED_BY(mu_);  // hot, durable and not kept
};

}  // namespace ckv
