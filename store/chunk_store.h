// All chunks of one holder: in memory while they are used, in files for as long as they exist.
//
//   ckv::ChunkStoreOptions options;
//   options.capacity_bytes = size_t{64} << 30;
//   options.path = "/var/lib/ckv/chunks";
//   CKV_ASSIGN_OR_RETURN(auto store, ckv::ChunkStore::Open(options));
//   CKV_ASSIGN_OR_RETURN(ckv::ChunkPut put, store->Begin(info, geometry, "tenant-a"));
//   for (uint32_t layer = 0; layer < geometry.layers; ++layer)
//     CKV_RETURN_IF_ERROR(put.Write(layer, /*offset_bytes=*/0, rows[layer]));
//   CKV_RETURN_IF_ERROR(std::move(put).Finish());  // whole, checked, on the device, visible
//   auto pin = store->table().Pin(locator);         // hot: no lock
//   if (absl::IsUnavailable(pin.status())) pin = store->Load(locator);  // cold: reads its file
//
// Tiers. The hot tier is an arena of capacity_bytes; the cold tier is the folder, and has every
// durable chunk whether hot or not. Where there is no room, the hot chunk that is cheapest to do
// without becomes cold (store/eviction.h): nothing is written then, so it takes microseconds.
//
// Between them, if asked for, are shadows (store/shadow_table.h): what was evicted, approximately.
//
// Without a path there is no cold tier: what is put is gone with the process, and a full store
// refuses what is new.

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
#include "proto/clock.h"
#include "store/arena.h"
#include "store/chunk_folder.h"
#include "store/chunk_rows.h"
#include "store/chunk_table.h"
#include "store/shadow_table.h"

namespace ckv {

struct ChunkStoreOptions {
  size_t capacity_bytes = size_t{1} << 30;  // of rows in memory
  PagePolicy pages = PagePolicy::kAuto;     // that they are in
  uint32_t chunk_count_max = 1u << 17;      // hot and cold
  std::string path;                         // of the folder; empty: memory only
  FileSystem* files = FileSystem::Real();
  uint32_t scan_threads = 8;
  // Of capacity_bytes, at most this much for shadows of evicted chunks, which the codec packs.
  uint64_t shadow_bytes_max = 0;
  const ShadowCodec* shadow_codec = nullptr;  // outlives the store; null: no shadows
  Clock* clock = Clock::Real();
};

struct ChunkStoreStats {
  ChunkTableStats table;
  uint64_t load_count = 0;  // cold chunks made hot
  uint64_t load_bytes = 0;
  uint64_t shadow_count = 0;   // of the cold chunks: with packed rows in memory
  uint64_t damaged_count = 0;  // chunks taken out for damage since the start
  uint64_t healed_count = 0;   // damage in memory or in a file that the other one made good
};

// What a check of a chunk where it lies found, in memory and in its file.
struct ChunkCheck {
  enum class Health {
    kWhole,
    kHealed,      // one of the two was damaged, and is made anew from the other
    kDamaged,     // there was no whole one: quarantined, and gone from here
    kUnreadable,  // the device fails; the chunk stays
  };
  Health health = Health::kWhole;
  std::string why = {};        // unless whole
  uint64_t bytes_checked = 0;  // of both
  uint64_t rows_checksum = 0;  // DigestOf its layer checksums: equal on every replica
};

// Asked before each piece of at most kVerifyPieceBytes is read, or a stripe or a file's header that
// is longer; false: stop.
using VerifyPace = absl::FunctionRef<bool(uint64_t bytes)>;
// As ReadAll takes at a time: half a millisecond of a slow disk, and it stays in a core's own cache
// between being read and being hashed.
inline constexpr uint64_t kVerifyPieceBytes = 288 << 10;

// A chunk that was taken out because it was damaged.
struct LostChunk {
  ChunkId id;
  std::vector<std::string> readers = {};  // none: not known
  bool kept = false;                      // for good
};

class ChunkStore;

// A chunk being received. Nothing of it is visible, or left, unless Finish returned OK. One thread
// at a time.
class ChunkPut {
 public:
  ChunkPut(ChunkPut&&) = default;
  // As ChunkWriter::Write and ChunkFileWriter::Write.
  absl::Status Write(uint32_t layer, uint64_t offset_bytes, std::span<const std::byte> bytes);
  //   AlreadyExists       it became resident meanwhile; the tenant may read it.
  //   DataLoss            a checksum does not match, or not that of who put it before.
  //   and what FileSystem says: the chunk is not there, and nothing else is affected.
  absl::Status Finish() &&;
  // As ChunkTable::Insert has it; before Finish.
  void set_ttl(Duration ttl) { ttl_ = ttl; }

 private:
  friend class ChunkStore;
  ChunkPut(ChunkStore* store, ChunkWriter memory, std::optional<ChunkFileWriter> file,
           std::string tenant)
      : store_(store), memory_(std::move(memory)), file_(std::move(file)), tenant_(tenant) {}

  ChunkStore* store_;
  ChunkWriter memory_;
  std::optional<ChunkFileWriter> file_;
  std::string tenant_;
  Duration ttl_{0};
};

// Thread-safe.
class ChunkStore {
 public:
  // Finds what the folder has; `report` may be null.
  //   ResourceExhausted   more chunks than chunk_count_max, or no memory.
  //   and as ChunkFolder::Open and Scan.
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Open(const ChunkStoreOptions& options,
                                                          ScanReport* report = nullptr);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Starts receiving a chunk, put for `tenant`; makes room for it.
  //   AlreadyExists, DataLoss, InvalidArgument   as ChunkTable::Begin; durable, too.
  //   ResourceExhausted   what is hot is pinned or kept, the disk is full, or chunk_count_max.
  //   Unavailable         the device fails.
  absl::StatusOr<ChunkPut> Begin(ChunkInfo info, const Geometry& geometry,
                                 std::string_view tenant = "");

  // Pins the chunk, reading it first where it is cold. Waits for the device: never on a thread that
  // serves requests.
  //   NotFound            dropped.
  //   DataLoss            its file is damaged: it was quarantined, and the chunk is gone from here.
  //   ResourceExhausted   it does not fit beside what is pinned and kept.
  //   Unavailable         the device fails; the chunk stays.
  absl::StatusOr<ChunkPin> Load(ChunkLocator locator);
  // To read some of a chunk's rows, hot or cold, without making it hot.
  //   NotFound, DataLoss, Unavailable   as Load.
  absl::StatusOr<ChunkRows> OpenRows(ChunkLocator locator);
  // What a chunk is, hot or cold: a cold one's file is read for it.
  //   NotFound, FailedPrecondition  as ChunkTable::Find; else as Load.
  absl::StatusOr<ChunkInfo> InfoOf(const ChunkId& id, const Geometry& geometry,
                                   std::string_view tenant);

  // Compares a chunk's rows with their checksums where they lie: in memory, pinned a piece at a
  // time, and in its file with all else that is there, past what the system remembers of it. Uses
  // one piece of memory. A damaged file is written again from memory that is whole; damaged memory
  // is let go, which makes handles to the chunk stale. What is whole is checked beside everything
  // else; only on damage is the chunk's file held, and read once more at full speed.
  //   NotFound            dropped.
  //   Cancelled           `pace` said so.
  absl::StatusOr<ChunkCheck> Verify(ChunkLocator locator, VerifyPace pace);

  // What was taken out since this returned it last; at first also what lies in the folder's
  // quarantine and is not here. At most kLostCountMax; of more, the first.
  std::vector<LostChunk> TakeLost() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kLostCountMax = 1u << 16;

  // ChunkTable::Keep, Drop and DropIdle, durable: a dropped chunk's file is removed.
  absl::Status Keep(const ChunkId& id, bool keep);
  absl::Status Drop(const ChunkId& id);
  absl::Status DropIdle(const ChunkId& id, Duration idle_min);
  // ChunkTable::KeepFor and PutAgain, durable.
  absl::Status KeepFor(const ChunkId& id, Duration time);
  absl::Status PutAgain(const ChunkId& id, Duration ttl);
  // Ends the marks and drops the chunks whose time is over, at most `count_max` chunks a call.
  // Called now and then: each ends in files that are removed. Returns how many chunks it dropped.
  size_t Expire(size_t count_max);

  ChunkTable& table() { return table_; }
  const ShadowTable& shadows() const { return shadows_; }
  // That rows of hot chunks lie in.
  PageKind page_kind() const { return arena_->page_kind(); }
  std::span<const std::byte> memory() const { return {arena_->base(), arena_->capacity_bytes()}; }
  ChunkStoreStats stats() const;

 private:
  friend class ChunkPut;
  friend class ChunkRows;
  ChunkStore(const ChunkStoreOptions& options, std::unique_ptr<Arena> arena,
             std::unique_ptr<ChunkFolder> folder);

  absl::Status AddStored(StoredChunk chunk);
  absl::StatusOr<ChunkFileReader> OpenFile(ChunkLocator locator);
  // Gives back memory of what is evicted, or of a shadow. False: there is none.
  bool MakeRoom();
  template <typename Allocate>
  auto WithRoom(uint64_t bytes, Allocate allocate) -> decltype(allocate());
  // A read of the chunk's file found this: it is quarantined and dropped. Returns what to say.
  absl::Status Damaged(ChunkLocator locator, const ChunkId& id, const absl::Status& status);
  // Within the chunk's turn: out of the table, its file out of the way.
  void TakeOut(const ColdChunk& what, std::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  void Lose(LostChunk lost) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MakeDurable(const ChunkId& id, const Geometry& geometry, std::string_view tenant);
  absl::Status SaveFacts(const ChunkId& id);
  template <typename DropRows>
  absl::Status DropFileAnd(const ChunkId& id, DropRows drop_rows);
  absl::StatusOr<ChunkPin> LoadFile(ChunkLocator locator, const ColdChunk& what);
  void Learn(uint64_t bytes, double us) ABSL_LOCKS_EXCLUDED(mu_);
  double ReloadUs(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // One thread at a time works on a chunk's file.
  void Enter(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  class Turn;
  class Verifier;

  Clock* const clock_;
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<ChunkFolder> folder_;
  ChunkTable table_;
  const ShadowCodec* const shadow_codec_;
  ShadowTable shadows_;
  mutable absl::Mutex mu_;
  absl::flat_hash_set<ChunkId> busy_ ABSL_GUARDED_BY(mu_);
  ReloadCost reload_ ABSL_GUARDED_BY(mu_);
  uint64_t load_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t load_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t damaged_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t healed_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<LostChunk> lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
