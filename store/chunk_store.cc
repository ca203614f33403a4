#include "store/chunk_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Assumed until the first loads are measured: a disk of a gigabyte a second that answers in a tenth
// of a millisecond. Only the relative value of large and small chunks depends on it.
constexpr ReloadCost kReloadAtStart = {.wait_us = 100, .bytes_per_us = 1000};
// The weight of each load: the average follows the last ten or so.
constexpr double kLearnShare = 0.1;
constexpr uint64_t kSmallLoadBytes = 64 << 10, kLargeLoadBytes = 1 << 20;
// A chunk that was read and evicted again before it was pinned, this many times, has no room.
constexpr int kLoadCountMax = 8;

}  // namespace

// A thread's turn at the file of one chunk.
class ChunkStore::Turn {
 public:
  Turn(ChunkStore* store, const ChunkId& id) : store_(store), id_(id) { store_->Enter(id_); }
  ~Turn() { store_->Leave(id_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  ChunkStore* const store_;
  const ChunkId id_;
};

absl::Status ChunkPut::Write(uint32_t layer, uint64_t offset_bytes,
                             std::span<const std::byte> bytes) {
  CKV_RETURN_IF_ERROR(memory_.Write(layer, offset_bytes, bytes));
  if (!file_) return absl::OkStatus();
  absl::Status written = file_->Write(layer, offset_bytes, bytes);
  if (!written.ok()) store_->NotePut(id_, written, bytes_);
  return written;
}

absl::Status ChunkPut::Finish() && {
  ChunkStore* const store = store_;
  const ChunkId id = id_;
  const uint64_t bytes = bytes_;
  absl::Status finished = std::move(*this).Commit();
  store->NotePut(id, finished, bytes);
  return finished;
}

absl::Status ChunkPut::Commit() && {
  CKV_ASSIGN_OR_RETURN(Chunk chunk, std::move(memory_).Finish());
  ChunkTable& table = store_->table_;
  if (!file_) return table.Insert(std::move(chunk), tenant_, /*durable=*/false, ttl_);
  const ChunkId id = chunk.info().id;
  const ChunkStore::Turn turn(store_, id);
  // Another put of the chunk was first. Its file stays, because it records whose the chunk was at
  // first.
  const bool committed = !table.IsDurable(id);
  if (committed) {
    // Left by an earlier chunk of this id, which had other readers.
    CKV_RETURN_IF_ERROR(store_->folder_->ForgetFacts(id));
    CKV_RETURN_IF_ERROR(std::move(*file_).Commit(chunk, tenant_));
  }
  absl::Status inserted = table.Insert(std::move(chunk), tenant_, /*durable=*/true, ttl_);
  if (absl::IsAlreadyExists(inserted)) {
    table.MarkDurable(id);  // it may have been in memory only
    if (committed && !table.IsDurable(id)) {
      // DropCopy removed the chunk in between.
      store_->folder_->Remove(id).IgnoreError();
      return absl::AbortedError("the chunk was dropped just now: put it once more");
    }
    CKV_RETURN_IF_ERROR(store_->SaveFacts(id));
  } else if (committed && !inserted.ok()) {
    // Whole on disk but refused here: there is no slot, or a copy in memory has other rows. The
    // file must not be there after a restart.
    store_->folder_->Remove(id).IgnoreError();
  } else if (inserted.ok() && ttl_ > Duration(0)) {
    CKV_RETURN_IF_ERROR(store_->SaveFacts(id));
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
  {
    absl::MutexLock lock(&store->mu_);
    for (const ChunkId& id : quarantined) {
      if (!store->table_.Contains(id) && store->lost_.size() < kLostCountMax)
        store->lost_.push_back({.id = id});
    }
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
      reload_(kReloadAtStart) {}

ChunkStore::~ChunkStore() = default;

absl::Status ChunkStore::AddStored(const StoredChunk& chunk) {
  const ChunkInfo& info = chunk.header.info;
  CKV_ASSIGN_OR_RETURN(const Geometry* geometry, table_.Intern(chunk.header.geometry));
  const ChunkSummary summary = {.id = info.id,
                                .position = info.position,
                                .token_count = info.token_count(),
                                .geometry = geometry,
                                .checksums_digest = DigestOf(info.layer_checksums)};
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

void ChunkStore::NotePut(const ChunkId& id, const absl::Status& status, uint64_t bytes) {
  if (absl::IsResourceExhausted(status) && bytes > arena_->capacity_bytes())
    return faults_.NoteMisfit(id, status);
  faults_.NotePut(id, status, bytes, arena_->used_bytes());
}

void ChunkStore::NoteRead(const ChunkId& id, const absl::Status& status) {
  faults_.NoteRead(id, status);
  if (!status.ok()) ForgetIfDropped(id);
}

// Drop clears the chunk's fault after it has removed the chunk from the table. So either Drop or
// this function clears it.
void ChunkStore::ForgetIfDropped(const ChunkId& id) {
  if (!table_.Contains(id)) faults_.NoteCheck(id, /*is_readable=*/true);
}

absl::StatusOr<ChunkPut> ChunkStore::Begin(ChunkInfo info, const Geometry& geometry,
                                           std::string_view tenant) {
  const ChunkId id = info.id;
  // If the geometry is not valid, this number has no meaning, and TryBegin refuses the chunk.
  const uint64_t bytes = LayOutChunk(geometry, info.token_count()).total_bytes;
  auto begun = TryBegin(std::move(info), geometry, tenant, bytes);
  // A chunk that is here already shows nothing about room for another.
  if (!begun.ok() && !absl::IsAlreadyExists(begun.status())) NotePut(id, begun.status(), bytes);
  return begun;
}

absl::StatusOr<ChunkPut> ChunkStore::TryBegin(ChunkInfo info, const Geometry& geometry,
                                              std::string_view tenant, uint64_t bytes) {
  const ChunkId id = info.id;
  const auto begin = [&] { return table_.Begin(info, geometry, tenant); };
  // A chunk that is there needs no room, whatever else it is refused for.
  auto memory = table_.Contains(id) ? begin() : WithRoom(bytes, begin);
  if (absl::IsAlreadyExists(memory.status()) && folder_ != nullptr) {
    const Turn turn(this, id);
    CKV_RETURN_IF_ERROR(CheckFolder());  // its file is gone with the folder
    CKV_RETURN_IF_ERROR(MakeDurable(id, geometry, tenant));
    CKV_RETURN_IF_ERROR(SaveFacts(id));
  }
  if (!memory.ok()) return memory.status();
  std::optional<ChunkFileWriter> file;
  if (folder_ != nullptr) {
    CKV_ASSIGN_OR_RETURN(ChunkFileWriter begun, folder_->Begin(info, geometry, tenant));
    file.emplace(std::move(begun));
  }
  return ChunkPut(this, *std::move(memory), std::move(file), std::string(tenant), id, bytes);
}

// Call within a turn. The chunk may be in memory only, as a copy of a replica keeper. The putter
// receives AlreadyExists, so the chunk must outlive the process.
absl::Status ChunkStore::MakeDurable(const ChunkId& id, const Geometry& geometry,
                                     std::string_view tenant) {
  if (table_.IsDurable(id)) return absl::OkStatus();
  const auto pin = table_.Pin(id, geometry, tenant);
  // Dropped since it was found to be there.
  if (!pin.ok()) return absl::AbortedError("the chunk was dropped just now: put it once more");
  const Chunk& chunk = pin->chunk();
  CKV_ASSIGN_OR_RETURN(ChunkFileWriter file, folder_->Begin(chunk.info(), geometry, tenant));
  for (uint32_t l = 0; l < geometry.layers; ++l)
    CKV_RETURN_IF_ERROR(file.Write(l, 0, chunk.layer(l)));
  CKV_RETURN_IF_ERROR(folder_->ForgetFacts(id));
  CKV_RETURN_IF_ERROR(std::move(file).Commit(chunk, tenant));
  table_.MarkDurable(id);
  if (table_.IsDurable(id)) return absl::OkStatus();
  // DropCopy removed the chunk in between: its file must not be there after a restart.
  folder_->Remove(id).IgnoreError();
  return absl::AbortedError("the chunk was dropped just now: put it once more");
}

// Call within a turn.
absl::Status ChunkStore::SaveFacts(const ChunkId& id) {
  // A copy in memory only has no file to save them next to. They stay unsaved until it has one.
  if (!table_.IsDurable(id)) return absl::OkStatus();
  const std::optional<ChunkFacts> facts = table_.ledger().UnsavedFacts(id);
  if (!facts) return absl::OkStatus();
  absl::Status written = folder_->WriteFacts(id, *facts);
  if (!written.ok()) table_.ledger().FactsNotSaved(id);
  return written;
}

absl::StatusOr<ChunkInfo> ChunkStore::InfoOf(const ChunkId& id, const Geometry& geometry,
                                             std::string_view tenant) {
  CKV_ASSIGN_OR_RETURN(const ChunkLocator locator, table_.Find(id, geometry, tenant));
  const auto pin = table_.Pin(locator);
  if (pin.ok()) return pin->chunk().info();
  if (!absl::IsUnavailable(pin.status())) return pin.status();
  CKV_ASSIGN_OR_RETURN(const ChunkFileReader file, OpenFile(locator));
  return file.header().info;
}

absl::StatusOr<ChunkRows> ChunkStore::OpenRows(ChunkLocator locator) {
  auto pin = table_.Pin(locator);
  if (pin.ok()) return ChunkRows(this, locator, *std::move(pin));
  if (!absl::IsUnavailable(pin.status())) return pin.status();
  CKV_ASSIGN_OR_RETURN(ChunkFileReader file, OpenFile(locator));
  return ChunkRows(this, locator, std::move(file));
}

absl::StatusOr<ChunkFileReader> ChunkStore::OpenFile(ChunkLocator locator) {
  CKV_ASSIGN_OR_RETURN(const ChunkSummary what, table_.Describe(locator));
  if (folder_ == nullptr) return absl::NotFoundError("a chunk in memory only has no file");
  auto reader = folder_->Read(what.id);
  NoteRead(what.id, reader.status());
  if (absl::IsDataLoss(reader.status()) || absl::IsNotFound(reader.status()))
    return Damaged(locator, what.id, reader.status());
  return reader;
}

absl::Status ChunkStore::Damaged(ChunkLocator locator, const ChunkId& id,
                                 const absl::Status& status) {
  const Turn turn(this, id);
  // Otherwise another thread found it first, and the chunk may have been put again since.
  if (const auto what = table_.Describe(locator); what.ok())
    TakeOut(*what, std::string(status.message()));
  return absl::DataLossError(absl::StrFormat("chunk %s is damaged and was taken out: %s",
                                             id.ShortHex(), std::string(status.message())));
}

absl::StatusOr<ChunkPin> ChunkStore::Load(ChunkLocator locator) {
  for (int i = 0; i < kLoadCountMax; ++i) {
    auto pin = table_.Pin(locator);
    if (!absl::IsUnavailable(pin.status())) return pin;
    CKV_ASSIGN_OR_RETURN(const ChunkSummary what, table_.Describe(locator));
    {
      const Turn turn(this, what.id);
      pin = LoadFile(locator, what);
    }
    if (absl::IsDataLoss(pin.status())) return Damaged(locator, what.id, pin.status());
    // A lack of memory is no fault of the device.
    if (!absl::IsResourceExhausted(pin.status())) NoteRead(what.id, pin.status());
    if (!absl::IsAborted(pin.status())) return pin;
  }
  return absl::ResourceExhaustedError("the chunk is evicted as fast as it is read");
}

// Call within the chunk's turn. Returns Aborted if the chunk was evicted again at once.
absl::StatusOr<ChunkPin> ChunkStore::LoadFile(ChunkLocator locator, const ChunkSummary& what) {
  // While this waited for its turn, another thread may have read it.
  if (auto pin = table_.Pin(locator); !absl::IsUnavailable(pin.status())) return pin;
  const Instant begin = clock_->Now();
  auto reader = folder_->Read(what.id);
  if (absl::IsNotFound(reader.status()))
    return absl::DataLossError(std::string(reader.status().message()));
  if (!reader.ok()) return reader.status();
  const uint64_t bytes = reader->header().layout().total_bytes;
  CKV_ASSIGN_OR_RETURN(Extent extent, WithRoom(bytes, [&] { return arena_->Allocate(bytes); }));
  CKV_RETURN_IF_ERROR(reader->ReadAll(extent.bytes()));
  Learn(bytes, double((clock_->Now() - begin).count()) / 1e3);
  Chunk chunk(reader->header().info, what.geometry, std::move(extent),
              reader->header().stripe_checksums);
  CKV_RETURN_IF_ERROR(table_.Warm(locator, std::move(chunk), ReloadUs(bytes)));
  shadows_.Remove(locator);
  auto pin = table_.Pin(locator);
  if (absl::IsUnavailable(pin.status())) return absl::AbortedError("evicted again");
  return pin;
}

void ChunkStore::Learn(uint64_t bytes, double us) {
  absl::MutexLock lock(&mu_);
  ++load_count_;
  load_bytes_ += bytes;
  if (us <= 0) return;
  if (bytes <= kSmallLoadBytes) reload_.wait_us += kLearnShare * (us - reload_.wait_us);
  if (bytes >= kLargeLoadBytes)
    reload_.bytes_per_us += kLearnShare * (double(bytes) / us - reload_.bytes_per_us);
}

double ChunkStore::ReloadUs(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  return reload_.Of(bytes);
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
  return SaveFactsNow(id);
}

absl::Status ChunkStore::KeepFor(const ChunkId& id, Duration time) {
  CKV_RETURN_IF_ERROR(table_.ledger().KeepFor(id, time));
  table_.Requeue(id);
  return SaveFactsNow(id);
}

absl::Status ChunkStore::PutAgain(const ChunkId& id, Duration ttl) {
  CKV_RETURN_IF_ERROR(table_.ledger().PutAgain(id, ttl));
  return SaveFactsNow(id);
}

bool ChunkStore::Touch(const ChunkId& id) { return table_.ledger().Touch(id); }

absl::Status ChunkStore::SaveFactsNow(const ChunkId& id) {
  if (folder_ == nullptr) return absl::OkStatus();
  const Turn turn(this, id);
  return SaveFacts(id);
}

absl::Status ChunkStore::Drop(const ChunkId& id, const DropIf& only) {
  if (folder_ == nullptr) return table_.Drop(id, only);
  const Turn turn(this, id);
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

void ChunkStore::Enter(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  const auto free = [this, &id]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !busy_.contains(id); };
  mu_.Await(absl::Condition(&free));
  busy_.insert(id);
}

void ChunkStore::Leave(const ChunkId& id) {
  absl::MutexLock lock(&mu_);
  busy_.erase(id);
}

absl::Status ChunkStore::CheckFolder() const {
  return folder_ == nullptr ? absl::OkStatus() : folder_->CheckThere();
}

ChunkStoreStats ChunkStore::stats() const {
  ChunkStoreStats stats;
  stats.table = table_.stats();
  stats.shadow_count = shadows_.count();
  stats.errors = faults_.Errors(stats.table.used_bytes);
  // Checked here, because there may have been no put since that would have failed.
  if (const absl::Status there = CheckFolder(); !there.ok()) {
    stats.errors.fault = StoreFault::kFailing;
    stats.errors.fault_text = std::string(there.message());
  }
  absl::MutexLock lock(&mu_);
  stats.load_count = load_count_;
  stats.load_bytes = load_bytes_;
  stats.damaged_count = damaged_count_;
  stats.healed_count = healed_count_;
  return stats;
}

}  // namespace ckv
