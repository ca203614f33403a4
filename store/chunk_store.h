// All chunks of one holder: in memory while they are used, in files for as long as they exist.
//
//   #include "store/memory/chunk_id.h"
//   #include "store/chunk_store.h"
//
//   ckv::ChunkStoreOptions options;
//   options.capacity_bytes = size_t{64} << 30;
//   options.path = "/var/lib/ckv/chunks";
//   CKV_ASSIGN_OR_RETURN(auto store, ckv::ChunkStore::Open(options));
//
//   ckv::ChunkInfo info;  // the first chunk of a chain: no parent, position 0
//   info.token_ids = tokens;
//   info.id = ckv::ComputeChunkId(ckv::ModelFingerprint(geometry), info.parent, info.position,
//                                 info.token_ids);
//   for (uint32_t t = 0; t < geometry.tensor_count(); ++t)  // each [token][tensor_row_bytes(t)]
//     info.tensor_checksums.push_back(ckv::ChecksumOf(tensors[t]));
//
//   CKV_ASSIGN_OR_RETURN(ckv::ChunkPut put, store->Begin(info, geometry, "tenant-a"));
//   for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
//     CKV_RETURN_IF_ERROR(put.Write(t, /*offset_bytes=*/0, tensors[t]));
//   CKV_RETURN_IF_ERROR(std::move(put).Finish());  // whole, checked, on the device, visible
//
//   CKV_ASSIGN_OR_RETURN(auto chunk, store->table().Find(info.id, geometry, "tenant-a"));
//   auto pin = store->table().Pin(chunk);                             // hot: no lock
//   if (absl::IsUnavailable(pin.status())) pin = store->Load(chunk);  // cold: reads its file
//   if (!pin.ok()) return pin.status();
//   Use(pin->chunk().layer(0));
//
// There are two tiers. The hot tier is an arena of capacity_bytes. The cold tier is the folder: it
// has every durable chunk, hot or not. When the arena is full, the hot chunk that is cheapest to do
// without becomes cold (store/memory/eviction.h). This eviction writes nothing, so it takes
// microseconds.
//
// If shadow_bytes_max and a codec are set, there are shadows between the tiers: approximate rows of
// evicted chunks (store/memory/shadow_table.h).
//
// Without a path there is no cold tier. Chunks are then lost when the process ends, and a full
// store refuses new ones.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "store/chunk_files.h"
#include "store/chunk_rows.h"
#include "store/damage_log.h"
#include "store/disk/chunk_folder.h"
#include "store/load_meter.h"
#include "store/memory/arena.h"
#include "store/memory/chunk_table.h"
#include "store/memory/shadow_table.h"
#include "store/store_faults.h"

namespace ckv {

struct ChunkStoreOptions {
  // Bytes of rows in memory. They are reserved at Open.
  size_t capacity_bytes = size_t{1} << 30;
  // The page size of this memory.
  PagePolicy pages = PagePolicy::kAuto;
  // The most chunks, hot and cold together.
  uint32_t chunk_count_max = 1u << 17;
  // The folder of chunk files. Created if missing; its parent must exist. If the path is empty,
  // chunks are in memory only.
  std::string path;
  // The file system of the folder. Must outlive the store.
  FileSystem* files = FileSystem::Real();
  // Threads that scan the folder at Open, 1 to 256.
  uint32_t scan_threads = 8;
  // The most bytes of capacity_bytes that shadows may use.
  uint64_t shadow_bytes_max = 0;
  // Packs the rows of shadows. Must outlive the store. If null, there are no shadows. Holders use
  // the fp8 codec in server/batch/shadow_codec.h.
  const ShadowCodec* shadow_codec = nullptr;
  // Must outlive the store.
  Clock* clock = Clock::Real();
};

struct ChunkStoreStats {
  ChunkTableStats table;
  uint64_t load_count = 0;  // cold chunks made hot
  uint64_t load_bytes = 0;
  uint64_t shadow_count = 0;   // cold chunks that have a shadow
  uint64_t damaged_count = 0;  // chunks removed because of damage, since Open
  uint64_t healed_count = 0;   // damaged copies, in memory or on disk, restored from the other
  StoreErrors errors;
};

// The result of Verify.
struct ChunkCheck {
  enum class Health {
    kWhole,
    kHealed,      // one of its two copies was damaged and was restored from the other
    kDamaged,     // no copy was whole: the chunk was quarantined and dropped
    kUnreadable,  // the device failed to read or rewrite its file; the chunk stays
  };
  Health health = Health::kWhole;
  std::string why = {};        // the reason, unless the chunk is whole
  uint64_t bytes_checked = 0;  // in memory and in the file together
  uint64_t rows_checksum = 0;  // DigestOf its tensor checksums: equal on every replica
};

// Called by Verify with the number of bytes it is about to read: at most kVerifyStepBytes, unless
// one stripe or a file's header is longer. May wait. Return false to stop the check.
using VerifyPace = absl::FunctionRef<bool(uint64_t bytes)>;
// The bytes that Verify reads at a time. A slow disk needs half a millisecond for them. They stay
// in a core's private cache until they are hashed.
inline constexpr uint64_t kVerifyStepBytes = 288 << 10;

class ChunkStore;

// A chunk that is being received. It becomes visible when Finish returns OK; destroying the put
// earlier discards it. Movable; used by one thread at a time. The store must outlive it. Write and
// Finish wait for the device and may return its errors (see ChunkStore).
class ChunkPut {
 public:
  ChunkPut(ChunkPut&&) = default;

  // Writes rows of one tensor, beginning `offset_bytes` after its first byte. Tensors may be
  // written in any order, the bytes of one only in order and without gaps. `bytes` are copied.
  // After an error, destroy the put.
  //   InvalidArgument     no such tensor, bytes past its end, or an offset that does not continue
  //                       the last write.
  absl::Status Write(uint32_t tensor, uint64_t offset_bytes, std::span<const std::byte> bytes);

  // Checks that every byte was written and that the checksums match, writes the chunk to the
  // device, and makes it visible. If the store has a folder, the chunk then survives a power loss.
  //   AlreadyExists       another put stored the chunk meanwhile. It is as durable as if this put
  //                       had stored it, and the tenant may read it.
  //   InvalidArgument     bytes are missing; the message names the tensor.
  //   DataLoss            a tensor's checksum does not match its rows; or the chunk was stored
  //                       meanwhile for other tenants, with different checksums.
  //   Aborted             the chunk was dropped meanwhile: put it again.
  //   ResourceExhausted   the store has chunk_count_max chunks, or the chunk has
  //                       ChunkLedger::kReaderCountMax readers.
  // After a device error the chunk is not visible. Exception: if only its ttl could not be saved,
  // it is visible, and after a restart it never expires.
  absl::Status Finish() &&;

  // Makes the chunk expire if it is not put again for `ttl`. Call it before Finish. Without this
  // call, or with zero, the chunk never expires.
  void set_ttl(Duration ttl) { ttl_ = ttl; }

 private:
  friend class ChunkStore;
  // The parts of its store.
  struct Home {
    ChunkTable* table;
    ChunkFiles* files;
    StoreFaults* faults;
    const Arena* arena;
  };
  ChunkPut(const Home& home, ChunkWriter memory, std::optional<ChunkFileWriter> file,
           std::string tenant, const ChunkId& id, uint64_t bytes)
      : home_(home),
        id_(id),
        bytes_(bytes),
        memory_(std::move(memory)),
        file_(std::move(file)),
        tenant_(std::move(tenant)) {}
  absl::Status Commit() &&;

  Home home_;
  ChunkId id_;
  uint64_t bytes_;
  ChunkWriter memory_;
  std::optional<ChunkFileWriter> file_;
  std::string tenant_;
  Duration ttl_{0};
};

// The one owner of a holder's chunks, and the only way to change them. Thread-safe: any thread may
// call any method. The store must outlive its puts, pins and ChunkRows.
//
// The comment of a method states whether it waits for the device; a thread that serves requests
// must not call one that does. If the store has a folder, these methods may return a device error,
// with the path and the system's error text. Unless stated otherwise, a device error leaves
// everything unchanged.
//   ResourceExhausted   the disk is full, or too many files are open.
//   Unavailable         the device fails, or the folder was removed or replaced.
//   PermissionDenied    the process may not use the folder, or it is read-only.
//   NotFound            the folder was removed.
//
// A chunk is stored once, for all tenants that put it. Only these tenants, its readers, find it
// (table().Find, InfoOf). Methods that take an id and no tenant are for operators: they see every
// chunk.
class ChunkStore {
 public:
  // Reserves the memory, takes over the folder, and scans it; all chunks start cold. Removes files
  // that a killed process left unfinished, and quarantines damaged ones. If `report` is set, it
  // receives the result of the scan. Waits for the device.
  //   InvalidArgument     capacity_bytes is zero, or scan_threads is out of range.
  //   FailedPrecondition  another process uses the folder, a later version of ckv made it, or it is
  //                       neither empty nor a folder of chunks.
  //   ResourceExhausted   the memory cannot be reserved, or the folder has more chunks than
  //                       chunk_count_max.
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Open(const ChunkStoreOptions& options,
                                                          ScanReport* report = nullptr);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // --- Putting. ---

  // Starts receiving a chunk for `tenant` ("" means everyone) and evicts others to make room for
  // it. Waits for the device.
  //   AlreadyExists       the chunk is stored already, on the device if there is a folder. The
  //                       tenant may now read it. There is nothing to send.
  //   DataLoss            the chunk is stored for other tenants, with different checksums: the
  //                       caller does not have the rows it claims.
  //   InvalidArgument     the info or the geometry is not valid; the message names the field.
  //   Aborted             the chunk was dropped just now: call Begin again.
  //   ResourceExhausted   memory is full of pinned or kept chunks; the store has chunk_count_max
  //                       chunks or GeometrySet::kCountMax geometries; or the chunk has
  //                       ChunkLedger::kReaderCountMax readers.
  absl::StatusOr<ChunkPut> Begin(ChunkInfo info, const Geometry& geometry,
                                 std::string_view tenant = "");
  // Records that a stored chunk was put again with `ttl`. Zero makes it permanent, and a permanent
  // chunk remains so. Otherwise the chunk expires at the later of its old and new times. Waits for
  // the device. After a device error the change is effective until the process ends, and is saved
  // with the next change of the chunk.
  //   NotFound            the chunk is not here.
  absl::Status PutAgain(const ChunkId& id, Duration ttl);

  // Starts receiving a copy of another holder's chunk, in memory only: a restart loses it, and no
  // other chunk is evicted for it. Copies do not wait for the device.
  //   AlreadyExists, DataLoss, InvalidArgument  as for Begin.
  //   ResourceExhausted   the memory is full; the store has chunk_count_max chunks or
  //                       GeometrySet::kCountMax geometries; or the chunk has
  //                       ChunkLedger::kReaderCountMax readers.
  absl::StatusOr<ChunkWriter> BeginCopy(ChunkInfo info, const Geometry& geometry,
                                        std::string_view tenant);
  // Makes a copy visible that BeginCopy's writer received for the same tenant.
  //   AlreadyExists       the chunk was stored meanwhile; the tenant may read it.
  //   DataLoss            the chunk was stored meanwhile for other tenants, with different
  //                       checksums.
  //   ResourceExhausted   the store has chunk_count_max chunks, or the chunk has kReaderCountMax
  //                       readers.
  absl::Status InsertCopy(Chunk chunk, std::string_view tenant);
  // Drops a copy.
  //   NotFound            the chunk is not here.
  //   FailedPrecondition  the chunk is kept, or was put meanwhile and now has a file.
  absl::Status DropCopy(const ChunkId& id);

  // --- Reading. ---

  // The chunks by id: finds, pins, describes and lists them. Never waits for the device.
  const ChunkTable& table() const { return table_; }
  // Approximate rows of evicted chunks.
  const ShadowTable& shadows() const { return shadows_; }

  // Pins the chunk, and reads it from its file first if it is cold. Waits for the device.
  //   NotFound            the chunk was dropped since it was found.
  //   DataLoss            its file is damaged. It was quarantined, and the chunk was dropped.
  //   ResourceExhausted   pinned and kept chunks leave too little memory, or the chunk is evicted
  //                       as fast as it is read.
  absl::StatusOr<ChunkPin> Load(ChunkLocator locator);
  // Opens a chunk to read some of its rows, without making it hot. Waits for the device if it is
  // cold.
  //   NotFound            the chunk was dropped since it was found.
  //   DataLoss            its file is damaged. It was quarantined, and the chunk was dropped.
  absl::StatusOr<ChunkRows> OpenRows(ChunkLocator locator);
  // Describes the chunk, hot or cold. Reads the file of a cold chunk, so it may wait for the
  // device.
  //   NotFound            the chunk is not here, or `tenant` may not read it. The two cases look
  //                       the same.
  //   FailedPrecondition  the chunk is here with another geometry.
  //   DataLoss            its file is damaged. It was quarantined, and the chunk was dropped.
  absl::StatusOr<ChunkInfo> InfoOf(const ChunkId& id, const Geometry& geometry,
                                   std::string_view tenant);

  // --- Marks and ends. ---

  // Marks the chunk so that eviction and garbage collection leave it alone, or removes the mark. A
  // cold chunk stays cold until it is read. Drop still removes it. Waits for the device. After a
  // device error the mark is effective until the process ends, and is saved with the next change of
  // the chunk.
  //   NotFound            the chunk is not here.
  absl::Status Keep(const ChunkId& id, bool keep);
  // Like Keep(id, true), but the mark expires after `time`. Replaces an earlier mark, even a longer
  // one.
  //   NotFound            the chunk is not here.
  absl::Status KeepFor(const ChunkId& id, Duration time);
  // Restarts the chunk's idle time. Returns false if the chunk is not here. Idle times are not
  // saved: after a restart they count from Open.
  bool Touch(const ChunkId& id);

  // Drops the chunk and removes its file, if `only` allows it. Pinned rows stay readable until the
  // last pin is released. Waits for the device. After a device error the chunk is dropped, but
  // reappears after a restart if its file still exists.
  //   NotFound            the chunk is not here.
  //   FailedPrecondition  a condition of `only` does not hold; nothing changed.
  absl::Status Drop(const ChunkId& id, const DropIf& only = {});
  // Removes expired marks of KeepFor and drops expired chunks, at most `count_max`. Returns how
  // many chunks it dropped. Call it periodically, if table().ledger().AnyDue(). Waits for the
  // device.
  size_t Expire(size_t count_max);

  // --- Damage. ---

  // Checks a chunk's rows against their checksums: in memory, pinned one step at a time, and in its
  // file, read from the device. Restores a damaged copy from the other one. Damaged memory is
  // released, which makes handles to the chunk stale. The check blocks no other call unless it
  // finds damage. Waits for the device and for `pace`. Damage and device errors are reported in the
  // ChunkCheck, not as a status.
  //   NotFound            the chunk was dropped.
  //   Cancelled           `pace` returned false.
  absl::StatusOr<ChunkCheck> Verify(ChunkLocator locator, VerifyPace pace);
  // Returns the chunks that were removed because of damage since the last call. The first call also
  // returns the chunks in the folder's quarantine that are not stored. At most kLostCountMax chunks
  // are queued; later ones are not reported.
  std::vector<LostChunk> TakeLost() { return files_.damage().TakeLost(); }
  static constexpr size_t kLostCountMax = DamageLog::kLostCountMax;

  // --- The store itself. ---

  // The page size of the memory of hot chunks.
  PageKind page_kind() const { return arena_->page_kind(); }
  // The memory that contains the rows of all hot chunks, for a fabric to register.
  std::span<const std::byte> memory() const { return {arena_->base(), arena_->capacity_bytes()}; }
  // Also checks that the folder still exists, because open files outlive their folder.
  ChunkStoreStats stats() const;

 private:
  ChunkStore(const ChunkStoreOptions& options, std::unique_ptr<Arena> arena,
             std::unique_ptr<ChunkFolder> folder);

  absl::StatusOr<ChunkPut> TryBegin(ChunkInfo info, const Geometry& geometry,
                                    std::string_view tenant, uint64_t bytes);
  absl::Status AddStored(const StoredChunk& chunk);
  // Frees memory by evicting a chunk or removing a shadow. Returns false if there is neither.
  bool MakeRoom();
  template <typename Allocate>
  auto WithRoom(uint64_t bytes, Allocate allocate) -> decltype(allocate());
  absl::StatusOr<ChunkPin> LoadFile(ChunkLocator locator, const ChunkSummary& what);

  Clock* const clock_;
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<ChunkFolder> folder_;  // null without a path
  ChunkTable table_;
  const ShadowCodec* const shadow_codec_;
  ShadowTable shadows_;
  mutable StoreFaults faults_;
  ChunkFiles files_;
  LoadMeter loads_;
};

}  // namespace ckv
