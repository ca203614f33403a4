// Maps the chunks this holder owns to their rows.
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
// Whoever pins often (a session's handles) asks Find once and pins by the locator.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/ids.h"
#include "store/chunk.h"

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
};

struct ChunkTableStats {
  uint64_t chunk_count = 0;
  uint64_t token_count = 0;
  uint64_t used_bytes = 0;
  uint64_t capacity_bytes = 0;
  uint64_t pin_count = 0;
};

// Thread-safe.
class ChunkTable {
 public:
  // `arena` backs every row and must outlive the table.
  ChunkTable(Arena* arena, uint32_t chunk_count_max);
  ~ChunkTable();
  ChunkTable(const ChunkTable&) = delete;
  ChunkTable& operator=(const ChunkTable&) = delete;

  // The one copy of `geometry` that this table's chunks point to; lives as long as the table.
  //   InvalidArgument     ValidateGeometry.
  //   ResourceExhausted   kGeometryCountMax distinct ones already.
  absl::StatusOr<const Geometry*> Intern(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kGeometryCountMax = 64;

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
  absl::Status Insert(Chunk chunk, std::string_view tenant = "") ABSL_LOCKS_EXCLUDED(mu_);

  //   NotFound            not resident here, so that the caller's directory entry is stale; or not
  //                       the tenant's to read: the two look the same.
  //   FailedPrecondition  resident with another geometry; retrying cannot help.
  absl::StatusOr<ChunkLocator> Find(const ChunkId& id, const Geometry& geometry,
                                    std::string_view tenant = "") const ABSL_LOCKS_EXCLUDED(mu_);

  // Pins the chunk for reading; one short lock.
  //   NotFound            dropped since it was found; resolve it again.
  absl::StatusOr<ChunkPin> Pin(ChunkLocator locator) ABSL_LOCKS_EXCLUDED(mu_);
  //   as Find.
  absl::StatusOr<ChunkPin> Pin(const ChunkId& id, const Geometry& geometry,
                               std::string_view tenant = "") ABSL_LOCKS_EXCLUDED(mu_);

  // Keep, Drop, Evict, Contains and List take no tenant: they are the operator's, who owns the
  // memory and sees all of it, and are reached over the holder's control plane, not by a session. A
  // chunk is stored once for all its readers, so it is dropped for all of them.

  // Marks the chunk as never to be evicted (or lifts the mark). Drop still removes it. A full table
  // refuses what is new; only replicas are evicted (server/replica_keeper.h).
  //   NotFound
  absl::Status Keep(const ChunkId& id, bool keep) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the chunk out of the table: no new pin finds it. Its memory is freed when the last pin
  // goes.
  //   NotFound
  absl::Status Drop(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Drop, but of what may be evicted.
  //   NotFound
  //   FailedPrecondition  the chunk is marked by Keep.
  absl::Status Evict(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the chunk is resident, whoever may read it.
  bool Contains(const ChunkId& id) const ABSL_LOCKS_EXCLUDED(mu_);

  // In the order of ids, after `after`, at most `count_max`.
  std::vector<ChunkListing> List(const std::optional<ChunkId>& after, size_t count_max) const
      ABSL_LOCKS_EXCLUDED(mu_);
  ChunkTableStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // The geometries of resident chunks; empty while the table is.
  std::vector<Geometry> geometries() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ChunkPin;
  struct Slot;
  struct InternedGeometry {
    std::unique_ptr<const Geometry> geometry;
    uint64_t chunk_count = 0;  // resident chunks that have it
  };
  void Unpin(uint32_t slot) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Remove(const ChunkId& id, bool even_kept) ABSL_LOCKS_EXCLUDED(mu_);
  // OK if `info` is to be stored; if it is resident, `tenant` becomes a reader where it may.
  absl::Status CheckNew(const ChunkInfo& info, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<uint32_t> FindSlot(const ChunkId& id, const Geometry& geometry,
                                    std::string_view tenant) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  ChunkPin PinSlot(uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::unique_ptr<const Chunk> Release(uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  InternedGeometry& Interned(const Geometry* geometry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Arena* const arena_;
  const uint32_t chunk_count_max_;
  mutable absl::Mutex mu_;
  std::vector<InternedGeometry> geometries_ ABSL_GUARDED_BY(mu_);
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mu_);
  uint32_t used_slot_count_ ABSL_GUARDED_BY(mu_) = 0;  // resident, or dropped and still pinned
  uint64_t token_count_ ABSL_GUARDED_BY(mu_) = 0;      // of resident chunks
  uint64_t pin_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ChunkId, uint32_t> by_id_ ABSL_GUARDED_BY(mu_);
  // The same in order, so that a page of List does not hold the lock for a scan of the table.
  absl::btree_map<ChunkId, uint32_t> in_order_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
