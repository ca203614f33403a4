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
//   for (uint32_t layer = 0; layer < geometry.layers; ++layer)  // rows are [token][row_bytes()]
//     info.layer_checksums.push_back(ckv::ChecksumOf(rows[layer]));
//
//   CKV_ASSIGN_OR_RETURN(ckv::ChunkPut put, store->Begin(info, geometry, "tenant-a"));
//   for (uint32_t layer = 0; layer < geometry.layers; ++layer)
//     CKV_RETURN_IF_ERROR(put.Write(layer, /*offset_bytes=*/0, rows[layer]));
//   CKV_RETURN_IF_ERROR(std::move(put).Finish());  // whole, checked, on the device, visible
//
//   CKV_ASSIGN_OR_RETURN(auto chunk, store->table().Find(info.id, geometry, "tenant-a"));
//   auto pin = store->table().Pin(chunk);                             // hot: no lock
//   if (absl::IsUnavailable(pin.status())) pin = store->Load(chunk);  // cold: reads its file
//   if (!pin.ok()) return pin.status();
//   Use(pin->chunk().layer(0));
//
// There are two tiers. The hot tier is an arena of capacity_bytes. The cold tier is the folder: it
// has every durable chunk, hot or not. When the arena has no room, the store makes the hot chunk
// cold that is cheapest to do without (store/memory/eviction.h). That writes nothing, so it takes
// microseconds.
//
// With shadow_bytes_max and a codec there are shadows between the tiers: approximate rows of what
// was evicted (store/memory/shadow_table.h).
//
// Without a path there is no cold tier. Chunks are then gone with the process, and a full store
// refuses new ones.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "store/chunk_rows.h"
#include "store/disk/chunk_folder.h"
#include "store/memory/arena.h"
#include "store/memory/chunk_table.h"
#include "store/memory/shadow_table.h"
#include "store/store_faults.h"

namespace ckv {

struct ChunkStoreOptions {
  // Bytes of rows in memory. They are reserved at Open.
  size_t capacity_bytes = size_t{1} << 30;
  // The size of the pages this memory is in.
  PagePolicy pages = PagePolicy::kAuto;
  // Most chunks, hot and cold together.
  uint32_t chunk_count_max = 1u << 17;
  // The folder of chunk files. It is made if it is missing; its parent must exist. If empty, chunks
  // are in memory only.
  std::string path;
  // The file system the folder is on. It must outlive the store.
  FileSystem* files = FileSystem::Real();
  // Threads that look through the folder at Open, 1 to 256.
  uint32_t scan_threads = 8;
  // Most bytes of capacity_bytes that shadows may take.
  uint64_t shadow_bytes_max = 0;
  // Packs the rows of shadows. It must outlive the store. If null, there are no shadows. The fp8
  // one is a holder's (server/batch/shadow_codec.h).
  const ShadowCodec* shadow_codec = nullptr;
  // It must outlive the store.
  Clock* clock = Clock::Real();
};

struct ChunkStoreStats {
  ChunkTableStats table;
  uint64_t load_count = 0;  // cold chunks made hot
  uint64_t load_bytes = 0;
  uint64_t shadow_count = 0;   // cold chunks that have a shadow
  uint64_t damaged_count = 0;  // chunks taken out because of damage, since Open
  uint64_t healed_count = 0;   // damage in memory or in a file that the other copy made good
  StoreErrors errors;
};

// The result of Verify.
struct ChunkCheck {
  enum class Health {
    kWhole,
    kHealed,      // one of its two copies was damaged and was made anew from the other
    kDamaged,     // no copy was whole: the chunk was quarantined and dropped
    kUnreadable,  // the device failed, so its file is not known to be whole; the chunk stays
  };
  Health health = Health::kWhole;
  std::string why = {};        // the reason, unless the chunk is whole
  uint64_t bytes_checked = 0;  // in memory and in the file together
  uint64_t rows_checksum = 0;  // DigestOf its layer checksums: equal on every replica
};

// Called by Verify with the number of bytes it is about to read: at most kVerifyStepBytes, unless
// one stripe or a file's header is longer. It may wait. Return false to stop the check.
using VerifyPace = absl::FunctionRef<bool(uint64_t bytes)>;
// The bytes Verify reads at a time. A slow disk takes half a millisecond for them. They stay in a
// core's own cache from reading to hashing.
inline constexpr uint64_t kVerifyStepBytes = 288 << 10;

// A chunk that was taken out because it was damaged.
struct LostChunk {
  ChunkId id;
  std::vector<std::string> readers = {};  // tenants who could read it; empty if not known
  bool kept = false;                      // whether Keep marked it for good
};

class ChunkStore;

// A chunk that is being received. It becomes visible when Finish returns OK; if the put is
// destroyed before, nothing of it is left. Movable; one thread at a time. The store must outlive
// it. Write and Finish wait for the device and may return its errors (see ChunkStore).
class ChunkPut {
 public:
  ChunkPut(ChunkPut&&) = default;

  // Writes rows of one layer, beginning `offset_bytes` after the layer's first byte. Layers may
  // come in any order; bytes of a layer come in order, without gaps. `bytes` are copied. After an
  // error, destroy the put.
  //   InvalidArgument     no such layer, past its end, or not where its last bytes ended.
  absl::Status Write(uint32_t layer, uint64_t offset_bytes, std::span<const std::byte> bytes);

  // Checks that every byte came and that the checksums hold, brings the chunk to the device, and
  // makes it visible. After OK it survives a power loss, if the store has a folder.
  //   AlreadyExists       the chunk came meanwhile, from another put. It is as durable as if this
  //                       put had stored it, and the tenant may read it.
  //   InvalidArgument     bytes are missing; the message says of which layer.
  //   DataLoss            a layer's checksum does not match its rows; or the chunk came meanwhile
  //                       for other tenants, with other checksums.
  //   ResourceExhausted   the store has chunk_count_max chunks.
  // After an error of the device the chunk is not visible. One exception: if only its ttl could not
  // be saved, it is visible, and after a restart it stays for good.
  absl::Status Finish() &&;

  // Makes the chunk expire when nobody puts it again for `ttl`. Called before Finish. If it is not
  // called, or with zero, the chunk stays for good.
  void set_ttl(Duration ttl) { ttl_ = ttl; }

 private:
  friend class ChunkStore;
  ChunkPut(ChunkStore* store, ChunkWriter memory, std::optional<ChunkFileWriter> file,
           std::string tenant, const ChunkId& id, uint64_t bytes)
      : store_(store),
        id_(id),
        bytes_(bytes),
        memory_(std::move(memory)),
        file_(std::move(file)),
        tenant_(std::move(tenant)) {}
  absl::Status Commit() &&;

  ChunkStore* store_;
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
// Methods that wait for the device say so; a thread that serves requests must not call them. If the
// store has a folder, they may return an error of the device, with the path and the system's words.
// Unless a method says otherwise, nothing changed then.
//   ResourceExhausted   the disk is full, or too many files are open.
//   Unavailable         the device fails, or somebody removed or replaced the folder.
//   PermissionDenied    the process may not use the folder, or it is read-only.
//   NotFound            somebody removed the folder.
//
// A chunk is stored once, for all tenants that put it. Only its readers find it (table().Find,
// InfoOf). Methods that take an id and no tenant are the operator's: they see every chunk.
class ChunkStore {
 public:
  // Reserves the memory, takes over the folder, and finds what it has; all chunks are cold then.
  // Files that a killed process left unfinished are removed, and damaged ones quarantined. If
  // `report` is set, it is told what was found. Waits for the device.
  //   InvalidArgument     capacity_bytes is zero, or scan_threads is out of range.
  //   FailedPrecondition  another process uses the folder, a later version of ckv made it, or it is
  //                       neither empty nor a folder of chunks.
  //   ResourceExhausted   the memory cannot be had, or the folder has more chunks than
  //                       chunk_count_max.
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Open(const ChunkStoreOptions& options,
                                                          ScanReport* report = nullptr);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // --- Putting. ---

  // Starts receiving a chunk for `tenant` ("" is everyone) and evicts others to make room for it.
  // Waits for the device.
  //   AlreadyExists       the chunk is here, and on the device if there is a folder. The tenant may
  //                       read it from now on. Nothing is to be sent.
  //   DataLoss            the chunk is here for other tenants, with other checksums: this putter
  //                       does not have the rows it claims.
  //   InvalidArgument     the info or the geometry is not valid; the message names the field.
  //   Aborted             the chunk was dropped just now: call Begin again.
  //   ResourceExhausted   the chunks in memory are pinned or kept; the store has chunk_count_max
  //                       chunks or ChunkTable::kGeometryCountMax geometries; or the chunk has
  //                       ChunkLedger::kReaderCountMax readers.
  absl::StatusOr<ChunkPut> Begin(ChunkInfo info, const Geometry& geometry,
                                 std::string_view tenant = "");
  // Notes that a chunk that is here was put again with `ttl`. Zero makes it stay for good. A chunk
  // that stays for good already goes on doing so. Otherwise the later of the old and the new end
  // holds. Waits for the device. After an error of the device the change holds until the process
  // ends. It is saved with the next change of the chunk.
  //   NotFound            the chunk is not here.
  absl::Status PutAgain(const ChunkId& id, Duration ttl);

  // Starts receiving a copy of another holder's chunk, in memory only: a restart loses it, and no
  // other chunk is evicted for it. Copies do not wait for the device.
  //   AlreadyExists, DataLoss, InvalidArgument  as for Begin.
  //   ResourceExhausted   the memory is full; the store has chunk_count_max chunks or
  //                       ChunkTable::kGeometryCountMax geometries; or the chunk has
  //                       ChunkLedger::kReaderCountMax readers.
  absl::StatusOr<ChunkWriter> BeginCopy(ChunkInfo info, const Geometry& geometry,
                                        std::string_view tenant);
  // Makes a copy visible that was received by the writer of BeginCopy for the same tenant.
  //   AlreadyExists       the chunk came meanwhile; the tenant may read it.
  //   DataLoss            the chunk came meanwhile for other tenants, with other checksums.
  //   ResourceExhausted   the store has chunk_count_max chunks, or the chunk kReaderCountMax
  //                       readers.
  absl::Status InsertCopy(Chunk chunk, std::string_view tenant);
  // Drops a copy.
  //   NotFound            the chunk is not here.
  //   FailedPrecondition  the chunk is kept, or somebody put it, so that it has a file now.
  absl::Status DropCopy(const ChunkId& id);

  // --- Reading. ---

  // The chunks by their ids: find, pin, describe and list them here. It never waits for the device.
  const ChunkTable& table() const { return table_; }
  // Approximate rows of evicted chunks.
  const ShadowTable& shadows() const { return shadows_; }

  // Pins the chunk, and reads it from its file first if it is cold. Waits for the device.
  //   NotFound            the chunk was dropped since it was found.
  //   DataLoss            its file is damaged. It was quarantined, and the chunk is gone.
  //   ResourceExhausted   it does not fit beside the chunks that are pinned or kept.
  absl::StatusOr<ChunkPin> Load(ChunkLocator locator);
  // Opens a chunk to read some of its rows, without making it hot. Waits for the device if it is
  // cold.
  //   NotFound            the chunk was dropped since it was found.
  //   DataLoss            its file is damaged. It was quarantined, and the chunk is gone.
  absl::StatusOr<ChunkRows> OpenRows(ChunkLocator locator);
  // Returns what the chunk is, hot or cold. A cold chunk's file is read for it, so this may wait
  // for the device.
  //   NotFound            the chunk is not here, or `tenant` may not read it. The two look alike.
  //   FailedPrecondition  the chunk is here with another geometry.
  //   DataLoss            its file is damaged. It was quarantined, and the chunk is gone.
  absl::StatusOr<ChunkInfo> InfoOf(const ChunkId& id, const Geometry& geometry,
                                   std::string_view tenant);

  // --- Marks and ends. ---

  // Marks the chunk so that eviction and garbage collection leave it alone, or lifts the mark. A
  // cold chunk stays cold until it is read. Drop still removes it. Waits for the device. After an
  // error of the device the mark holds until the process ends. It is saved with the next change of
  // the chunk.
  //   NotFound            the chunk is not here.
  absl::Status Keep(const ChunkId& id, bool keep);
  // Does what Keep(id, true) does, but the mark ends by itself after `time`. It replaces an earlier
  // mark, even a longer one.
  //   NotFound            the chunk is not here.
  absl::Status KeepFor(const ChunkId& id, Duration time);
  // Starts the chunk's idle time anew. Returns false if the chunk is not here. Idle times are not
  // saved: after a restart they count from Open.
  bool Touch(const ChunkId& id);

  // Drops the chunk and removes its file, if `only` allows it. Rows that are pinned stay readable
  // until the last pin goes. Waits for the device. After an error of the device the chunk is
  // dropped, but a restart brings it back if its file is still there.
  //   NotFound            the chunk is not here.
  //   FailedPrecondition  a condition of `only` does not hold; nothing changed.
  absl::Status Drop(const ChunkId& id, const DropIf& only = {});
  // Ends the marks of KeepFor and drops the chunks whose time is over, at most `count_max` chunks.
  // Returns how many it dropped. Call it now and then, if table().ledger().AnyDue(). Waits for the
  // device.
  size_t Expire(size_t count_max);

  // --- Damage. ---

  // Compares a chunk's rows with their checksums in memory, pinned a step at a time, and in its
  // file, read from the device. If one copy is damaged it is made anew from the other. Damaged
  // memory is let go, which makes handles to the chunk stale. The check holds up no other call
  // unless it finds damage. Waits for the device and for `pace`. Damage and errors of the device
  // are not returned as errors; the ChunkCheck says so.
  //   NotFound            the chunk was dropped.
  //   Cancelled           `pace` returned false.
  absl::StatusOr<ChunkCheck> Verify(ChunkLocator locator, VerifyPace pace);
  // Returns the chunks that were taken out because of damage since the last call. The first call
  // also returns what lies in the folder's quarantine and is not here. At most kLostCountMax chunks
  // wait for it; later ones are forgotten.
  std::vector<LostChunk> TakeLost() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kLostCountMax = 1u << 16;

  // --- The store itself. ---

  // The size of the pages that rows of hot chunks are in.
  PageKind page_kind() const { return arena_->page_kind(); }
  // All memory that rows of hot chunks are in, for a fabric to register.
  std::span<const std::byte> memory() const { return {arena_->base(), arena_->capacity_bytes()}; }
  // Also checks that the folder is still there, because open files outlive their folder.
  ChunkStoreStats stats() const;

 private:
  friend class ChunkPut;
  friend class ChunkRows;
  ChunkStore(const ChunkStoreOptions& options, std::unique_ptr<Arena> arena,
             std::unique_ptr<ChunkFolder> folder);

  void NotePut(const ChunkId& id, const absl::Status& status, uint64_t bytes);
  void NoteRead(const ChunkId& id, const absl::Status& status);
  // A chunk that was dropped while its file was read or checked is not unreadable for ever.
  void ForgetIfDropped(const ChunkId& id);
  absl::StatusOr<ChunkPut> TryBegin(ChunkInfo info, const Geometry& geometry,
                                    std::string_view tenant, uint64_t bytes);
  // OK without a folder. Errors are those of ChunkFolder::CheckThere.
  absl::Status CheckFolder() const;
  absl::Status AddStored(const StoredChunk& chunk);
  absl::StatusOr<ChunkFileReader> OpenFile(ChunkLocator locator);
  // Gives back the memory of a chunk that it evicts, or of a shadow. Returns false if there is
  // none.
  bool MakeRoom();
  template <typename Allocate>
  auto WithRoom(uint64_t bytes, Allocate allocate) -> decltype(allocate());
  // Quarantines and drops a chunk whose file was found to be damaged. Returns what to say.
  absl::Status Damaged(ChunkLocator locator, const ChunkId& id, const absl::Status& status);
  // Takes the chunk out of the table and its file out of the way. Within the chunk's turn.
  void TakeOut(const ChunkSummary& what, std::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  void Lose(const ChunkId& id, const ChunkFacts& facts) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MakeDurable(const ChunkId& id, const Geometry& geometry, std::string_view tenant);
  // Saves a chunk's facts if they changed. SaveFacts is called within the chunk's turn;
  // SaveFactsNow takes it.
  absl::Status SaveFacts(const ChunkId& id);
  absl::Status SaveFactsNow(const ChunkId& id);
  absl::StatusOr<ChunkPin> LoadFile(ChunkLocator locator, const ChunkSummary& what);
  void Learn(uint64_t bytes, double us) ABSL_LOCKS_EXCLUDED(mu_);
  double ReloadUs(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Begin and end a turn: one thread at a time works on a chunk's file.
  void Enter(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  class Turn;
  class Verifier;

  Clock* const clock_;
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<ChunkFolder> folder_;  // null without a path
  ChunkTable table_;
  const ShadowCodec* const shadow_codec_;
  ShadowTable shadows_;
  mutable StoreFaults faults_;
  mutable absl::Mutex mu_;
  absl::flat_hash_set<ChunkId> busy_ ABSL_GUARDED_BY(mu_);  // chunks whose turn is taken
  ReloadCost reload_ ABSL_GUARDED_BY(mu_);
  uint64_t load_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t load_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t damaged_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t healed_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<LostChunk> lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
