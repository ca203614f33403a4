// Keeps table and folder consistent. A ChunkFileLock orders all changes of a chunk's file:
//   put     Begin makes room in memory, and begins a file. Write writes to both. Finish commits
//           the file, then inserts into the table, so that a found chunk survives a restart
//   load    pins. If the chunk is cold: makes room, reads the file, warms the table, pins
//   drop    removes the chunk from the table, then its file
//   room    MakeRoom evicts one chunk, and packs it as a shadow; else removes the oldest shadow
// Open adds the chunks of the folder as cold ones. Functions run on the caller's thread.

#include "store/chunk_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A chunk that was read and evicted again before it was pinned, this many times, has no room.
constexpr int kLoadCountMax = 8;

// Notes the outcome of a put of `bytes` bytes.
void NotePut(StoreFaults& faults, const Arena& arena, const ChunkId& id, const absl::Status& status,
             uint64_t bytes) {
  if (absl::IsResourceExhausted(status) && bytes > arena.capacity_bytes())
    return faults.NoteMisfit(id, status);
  faults.NotePut(id, status, bytes, arena.used_bytes());
}

}  // namespace

absl::Status ChunkPut::Write(uint32_t tensor, uint64_t offset_bytes,
                             std::span<const std::byte> bytes) {
  CKV_RETURN_IF_ERROR(memory_.Write(tensor, offset_bytes, bytes));
  if (!file_) return absl::OkStatus();
  absl::Status written = file_->Write(tensor, offset_bytes, bytes);
  if (!written.ok()) NotePut(*home_.faults, *home_.arena, id_, written, bytes_);
  return written;
}

absl::Status ChunkPut::Finish() && {
  const Home home = home_;
  const ChunkId id = id_;
  const uint64_t bytes = bytes_;
  absl::Status finished = std::move(*this).Commit();
  NotePut(*home.faults, *home.arena, id, finished, bytes);
  return finished;
}

absl::Status ChunkPut::Commit() && {
  CKV_ASSIGN_OR_RETURN(Chunk chunk, std::move(memory_).Finish());
  ChunkTable& table = *home_.table;
  if (!file_) return table.Insert(std::move(chunk), tenant_, /*durable=*/false, ttl_);
  const ChunkId id = chunk.info().id;
  ChunkFolder& folder = *home_.files->folder();
  const ChunkFileLock file_lock(home_.files->locks(), id);
  // Another put of the chunk was first. Its file stays, because it records whose the chunk was at
  // first.
  const bool committed = !table.IsDurable(id);
  if (committed) {
    // Left by an earlier chunk of this id, which had other readers.
    CKV_RETURN_IF_ERROR(folder.ForgetFacts(id));
    CKV_RETURN_IF_ERROR(std::move(*file_).Commit(chunk, tenant_));
  }
  absl::Status inserted = table.Insert(std::move(chunk), tenant_, /*durable=*/true, ttl_);
  if (absl::IsAlreadyExists(inserted)) {
    table.MarkDurable(id);  // it may have been in memory only
    if (committed && !table.IsDurable(id)) {
      // DropCopy removed the chunk in between.
      folder.Remove(id).IgnoreError();
      return absl::AbortedError("the chunk was dropped just now: put it once more");
    }
    CKV_RETURN_IF_ERROR(home_.files->SaveFacts(id));
  } else if (committed && !inserted.ok()) {
    // Whole on disk but refused here: there is no slot, or a copy in memory has other rows. The
    // file must not be there after a restart.
    folder.Remove(id).IgnoreError();
  } else if (inserted.ok() && ttl_ > Duration(0)) {
    CKV_RETURN_IF_ERROR(home_.files->SaveFacts(id));
  }
  return inserted;
}

absl::StatusOr<std::unique_ptr<ChunkStore>> ChunkStore::Open(const ChunkStoreOptions& options,
                                                             ScanReport* report) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena,
                       Arena::Create(options.capacity_bytes, options.pages));
  std::unique_ptr<ChunkFolder> folder;
  if (!options.path.empty()) {
    const ChunkFolderOptions folder_options = {
        .path = options.path, .files = options.files, .scan_threads = options.scan_threads};
    CKV_ASSIGN_OR_RETURN(folder, ChunkFolder::Open(folder_options));
  }
  std::unique_ptr<ChunkStore> store(new ChunkStore(options, std::move(arena), std::move(folder)));
  if (store->folder_ == nullptr) return store;
  absl::Status added;
  CKV_ASSIGN_OR_RETURN(const ScanReport scanned,
                       store->folder_->Scan([&](const StoredChunk& chunk) {
                         added.Update(store->AddStored(chunk));
                       }));
  CKV_RETURN_IF_ERROR(added);
  CKV_ASSIGN_OR_RETURN(const std::vector<ChunkId> quarantined, store->folder_->Quarantined());
  for (const ChunkId& id : quarantined) {
    if (!store->table_.Contains(id)) store->files_.damage().AddEarlier({.id = id});
  }
  if (report != nullptr) *report = scanned;
  return store;
}

ChunkStore::ChunkStore(const ChunkStoreOptions& options, std::unique_ptr<Arena> arena,
                       std::unique_ptr<ChunkFolder> folder)
    : clock_(options.clock),
      arena_(std::move(arena)),
      folder_(std::move(folder)),
      table_(arena_.get(), options.chunk_count_max, options.clock),
      shadow_codec_(options.shadow_codec),
      shadows_(options.shadow_codec == nullptr ? 0 : options.shadow_bytes_max),
      faults_(options.path, options.clock),
      files_(folder_.get(), &table_, &shadows_, &faults_) {}

ChunkStore::~ChunkStore() = default;

absl::Status ChunkStore::AddStored(const StoredChunk& chunk) {
  const ChunkInfo& info = chunk.header.info;
  CKV_ASSIGN_OR_RETURN(const Geometry* geometry, table_.geometries().Intern(chunk.header.geometry));
  const ChunkSummary summary = {.id = info.id,
                                .position = info.position,
                                .token_count = info.token_count(),
                                .geometry = geometry,
                                .checksums_digest = DigestOf(info.tensor_checksums)};
  return Annotate(table_.InsertCold(summary, chunk.facts),
                  "the folder has more chunks than it may");
}

bool ChunkStore::MakeRoom() {
  std::optional<ChunkTable::Evicted> evicted = table_.EvictOne();
  if (!evicted) return shadows_.RemoveOldest();
  if (shadows_.bytes_max() == 0) return true;
  auto shadow = Shadow::Make(std::move(evicted->chunk), *shadow_codec_);
  if (shadow == nullptr) return true;
  shadows_.Add(evicted->locator, std::move(shadow));
  // It may have been dropped, or read again, while its rows were packed.
  const auto pin = table_.Pin(evicted->locator);
  if (!absl::IsUnavailable(pin.status())) shadows_.Remove(evicted->locator);
  return true;
}

// Allocates, and evicts while that helps: not for a size that never fits, and not against a limit
// other than the arena's.
template <typename Allocate>
auto ChunkStore::WithRoom(uint64_t bytes, Allocate allocate) -> decltype(allocate()) {
  bool again = true;  // after a failure with room: another thread may have made it just then
  while (true) {
    auto allocated = allocate();
    if (!absl::IsResourceExhausted(allocated.status()) || bytes > arena_->capacity_bytes())
      return allocated;
    if (arena_->Fits(bytes)) {
      if (!std::exchange(again, false)) return allocated;
    } else if (!MakeRoom()) {
      return allocated;
    }
  }
}

absl::StatusOr<ChunkPut> ChunkStore::Begin(ChunkInfo info, const Geometry& geometry,
                                           std::string_view tenant) {
  const ChunkId id = info.id;
  // If the geometry is not valid, this number has no meaning, and TryBegin refuses the chunk.
  const uint64_t bytes = ChunkLayout(geometry, info.token_count()).total_bytes();
  auto begun = TryBegin(std::move(info), geometry, tenant, bytes);
  // A chunk that is here already shows nothing about room for another.
  if (!begun.ok() && !absl::IsAlreadyExists(begun.status()))
    NotePut(faults_, *arena_, id, begun.status(), bytes);
  return begun;
}

absl::StatusOr<ChunkPut> ChunkStore::TryBegin(ChunkInfo info, const Geometry& geometry,
                                              std::string_view tenant, uint64_t bytes) {
  const ChunkId id = info.id;
  const auto begin = [&] { return table_.Begin(info, geometry, tenant); };
  // A chunk that is there needs no room, whatever else it is refused for.
  auto memory = table_.Contains(id) ? begin() : WithRoom(bytes, begin);
  if (absl::IsAlreadyExists(memory.status()) && folder_ != nullptr) {
    const ChunkFileLock file_lock(files_.locks(), id);
    CKV_RETURN_IF_ERROR(files_.CheckThere());  // its file is gone with the folder
    CKV_RETURN_IF_ERROR(files_.MakeDurable(id, geometry, tenant));
    CKV_RETURN_IF_ERROR(files_.SaveFacts(id));
  }
  if (!memory.ok()) return memory.status();
  std::optional<ChunkFileWriter> file;
  if (folder_ != nullptr) {
    CKV_ASSIGN_OR_RETURN(ChunkFileWriter begun, folder_->Begin(info, geometry, tenant));
    file.emplace(std::move(begun));
  }
  const ChunkPut::Home home = {&table_, &files_, &faults_, arena_.get()};
  return ChunkPut(home, *std::move(memory), std::move(file), std::string(tenant), id, bytes);
}

absl::StatusOr<ChunkInfo> ChunkStore::InfoOf(const ChunkId& id, const Geometry& geometry,
                                             std::string_view tenant) {
  CKV_ASSIGN_OR_RETURN(const ChunkLocator locator, table_.Find(id, geometry, tenant));
  const auto pin = table_.Pin(locator);
  if (pin.ok()) return pin->chunk().info();
  if (!absl::IsUnavailable(pin.status())) return pin.status();
  CKV_ASSIGN_OR_RETURN(const ChunkFileReader file, files_.Open(locator));
  return file.header().info;
}

absl::StatusOr<ChunkRows> ChunkStore::OpenRows(ChunkLocator locator) {
  auto pin = table_.Pin(locator);
  if (pin.ok()) return ChunkRows(&files_, locator, *std::move(pin));
  if (!absl::IsUnavailable(pin.status())) return pin.status();
  CKV_ASSIGN_OR_RETURN(ChunkFileReader file, files_.Open(locator));
  return ChunkRows(&files_, locator, std::move(file));
}

absl::StatusOr<ChunkPin> ChunkStore::Load(ChunkLocator locator) {
  for (int i = 0; i < kLoadCountMax; ++i) {
    auto pin = table_.Pin(locator);
    if (!absl::IsUnavailable(pin.status())) return pin;
    CKV_ASSIGN_OR_RETURN(const ChunkSummary what, table_.Describe(locator));
    {
      const ChunkFileLock file_lock(files_.locks(), what.id);
      pin = LoadFile(locator, what);
    }
    if (absl::IsDataLoss(pin.status())) return files_.Damaged(locator, what.id, pin.status());
    // A lack of memory is no fault of the device.
    if (!absl::IsResourceExhausted(pin.status())) files_.NoteRead(what.id, pin.status());
    if (!absl::IsAborted(pin.status())) return pin;
  }
  return absl::ResourceExhaustedError("the chunk is evicted as fast as it is read");
}

// Call with the chunk's file locked. Returns Aborted if the chunk was evicted again at once.
absl::StatusOr<ChunkPin> ChunkStore::LoadFile(ChunkLocator locator, const ChunkSummary& what) {
  // While this waited for the lock, another thread may have read it.
  if (auto pin = table_.Pin(locator); !absl::IsUnavailable(pin.status())) return pin;
  const Instant begin = clock_->Now();
  auto reader = folder_->Read(what.id);
  if (absl::IsNotFound(reader.status()))
    return absl::DataLossError(std::string(reader.status().message()));
  if (!reader.ok()) return reader.status();
  const uint64_t bytes = reader->header().layout().total_bytes();
  CKV_ASSIGN_OR_RETURN(Extent extent, WithRoom(bytes, [&] { return arena_->Allocate(bytes); }));
  CKV_RETURN_IF_ERROR(reader->ReadAll(extent.bytes()));
  loads_.Note(bytes, double((clock_->Now() - begin).count()) / 1e3);
  Chunk chunk(reader->header().info, what.geometry, std::move(extent),
              reader->header().stripe_checksums);
  CKV_RETURN_IF_ERROR(table_.Warm(locator, std::move(chunk), loads_.ReloadUs(bytes)));
  shadows_.Remove(locator);
  auto pin = table_.Pin(locator);
  if (absl::IsUnavailable(pin.status())) return absl::AbortedError("evicted again");
  return pin;
}

absl::StatusOr<ChunkWriter> ChunkStore::BeginCopy(ChunkInfo info, const Geometry& geometry,
                                                  std::string_view tenant) {
  return table_.Begin(std::move(info), geometry, tenant);
}

absl::Status ChunkStore::InsertCopy(Chunk chunk, std::string_view tenant) {
  return table_.Insert(std::move(chunk), tenant);
}

absl::Status ChunkStore::DropCopy(const ChunkId& id) {
  return table_.Drop(id, {.not_kept = true, .in_memory_only = true});
}

absl::Status ChunkStore::Keep(const ChunkId& id, bool keep) {
  CKV_RETURN_IF_ERROR(table_.ledger().Keep(id, keep));
  table_.Requeue(id);
  return files_.SaveFactsNow(id);
}

absl::Status ChunkStore::KeepFor(const ChunkId& id, Duration time) {
  CKV_RETURN_IF_ERROR(table_.ledger().KeepFor(id, time));
  table_.Requeue(id);
  return files_.SaveFactsNow(id);
}

absl::Status ChunkStore::PutAgain(const ChunkId& id, Duration ttl) {
  CKV_RETURN_IF_ERROR(table_.ledger().PutAgain(id, ttl));
  return files_.SaveFactsNow(id);
}

bool ChunkStore::Touch(const ChunkId& id) { return table_.ledger().Touch(id); }

absl::Status ChunkStore::Drop(const ChunkId& id, const DropIf& only) {
  if (folder_ == nullptr) return table_.Drop(id, only);
  const ChunkFileLock file_lock(files_.locks(), id);
  const auto chunk = table_.Locate(id);
  CKV_RETURN_IF_ERROR(table_.Drop(id, only));
  if (chunk.ok()) shadows_.Remove(*chunk);
  faults_.NoteCheck(id, /*is_readable=*/true);  // no one reads it any more
  return folder_->Remove(id);
}

size_t ChunkStore::Expire(size_t count_max) {
  size_t dropped = 0;
  for (size_t i = 0; i < count_max; ++i) {
    const ChunkLedger::Due due = table_.ledger().TakeDue();
    for (const ChunkId& id : due.unkept) table_.Requeue(id);
    if (!due.expired) break;
    const absl::Status status = Drop(*due.expired, {.not_kept = true, .expired = true});
    // Refused if it was put again, kept or dropped just now. A file that cannot be removed is found
    // at the next start, and its time runs again.
    if (!absl::IsFailedPrecondition(status) && !absl::IsNotFound(status)) ++dropped;
  }
  return dropped;
}

ChunkStoreStats ChunkStore::stats() const {
  ChunkStoreStats stats;
  stats.table = table_.stats();
  stats.shadow_count = shadows_.count();
  stats.errors = faults_.Errors(stats.table.used_bytes);
  // Checked here, because there may have been no put since that would have failed.
  if (const absl::Status there = files_.CheckThere(); !there.ok()) {
    stats.errors.fault = StoreFault::kFailing;
    stats.errors.fault_text = std::string(there.message());
  }
  const LoadMeter::Total loads = loads_.total();
  stats.load_count = loads.count;
  stats.load_bytes = loads.bytes;
  stats.damaged_count = files_.damage().lost_count();
  stats.healed_count = files_.damage().healed_count();
  return stats;
}

}  // namespace ckv
