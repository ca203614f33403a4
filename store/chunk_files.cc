#include "store/chunk_files.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status ChunkFiles::CheckThere() const {
  return folder_ == nullptr ? absl::OkStatus() : folder_->CheckThere();
}

absl::StatusOr<ChunkFileReader> ChunkFiles::Open(ChunkLocator locator) {
  CKV_ASSIGN_OR_RETURN(const ChunkSummary what, table_->Describe(locator));
  if (folder_ == nullptr) return absl::NotFoundError("a chunk in memory only has no file");
  auto reader = folder_->Read(what.id);
  NoteRead(what.id, reader.status());
  if (absl::IsDataLoss(reader.status()) || absl::IsNotFound(reader.status()))
    return Damaged(locator, what.id, reader.status());
  return reader;
}

absl::Status ChunkFiles::Damaged(ChunkLocator locator, const ChunkId& id,
                                 const absl::Status& status) {
  const ChunkFileLock file_lock(&locks_, id);
  // Otherwise another thread found it first, and the chunk may have been put again since.
  if (const auto what = table_->Describe(locator); what.ok())
    TakeOut(*what, std::string(status.message()));
  return absl::DataLossError(absl::StrFormat("chunk %s is damaged and was taken out: %s",
                                             id.ShortHex(), std::string(status.message())));
}

void ChunkFiles::NoteRead(const ChunkId& id, const absl::Status& status) {
  faults_->NoteRead(id, status);
  if (!status.ok()) ForgetIfDropped(id);
}

// Drop clears the chunk's fault after it has removed the chunk from the table. So either Drop or
// this function clears it.
void ChunkFiles::ForgetIfDropped(const ChunkId& id) {
  if (!table_->Contains(id)) faults_->NoteCheck(id, /*is_readable=*/true);
}

void ChunkFiles::Lose(const ChunkId& id, const ChunkFacts& facts) {
  damage_.AddLost({id, facts.readers, facts.kept && facts.kept_until_ms == 0});
}

absl::Status ChunkFiles::SaveFactsNow(const ChunkId& id) {
  if (folder_ == nullptr) return absl::OkStatus();
  const ChunkFileLock file_lock(&locks_, id);
  return SaveFacts(id);
}

absl::Status ChunkFiles::SaveFacts(const ChunkId& id) {
  // A copy in memory only has no file to save them next to. They stay unsaved until it has one.
  if (!table_->IsDurable(id)) return absl::OkStatus();
  const std::optional<ChunkFacts> facts = table_->ledger().UnsavedFacts(id);
  if (!facts) return absl::OkStatus();
  absl::Status written = folder_->WriteFacts(id, *facts);
  if (!written.ok()) table_->ledger().FactsNotSaved(id);
  return written;
}

absl::Status ChunkFiles::MakeDurable(const ChunkId& id, const Geometry& geometry,
                                     std::string_view tenant) {
  if (table_->IsDurable(id)) return absl::OkStatus();
  const auto pin = table_->Pin(id, geometry, tenant);
  // Dropped since it was found to be there.
  if (!pin.ok()) return absl::AbortedError("the chunk was dropped just now: put it once more");
  const Chunk& chunk = pin->chunk();
  CKV_ASSIGN_OR_RETURN(ChunkFileWriter file, folder_->Begin(chunk.info(), geometry, tenant));
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
    CKV_RETURN_IF_ERROR(file.Write(t, 0, chunk.tensor(t)));
  CKV_RETURN_IF_ERROR(folder_->ForgetFacts(id));
  CKV_RETURN_IF_ERROR(std::move(file).Commit(chunk, tenant));
  table_->MarkDurable(id);
  if (table_->IsDurable(id)) return absl::OkStatus();
  // DropCopy removed the chunk in between: its file must not be there after a restart.
  folder_->Remove(id).IgnoreError();
  return absl::AbortedError("the chunk was dropped just now: put it once more");
}

void ChunkFiles::TakeOut(const ChunkSummary& what, std::string_view why) {
  const ChunkFacts facts = table_->ledger().FactsOf(what.id).value_or(ChunkFacts{});
  if (const auto chunk = table_->Locate(what.id); chunk.ok()) shadows_->Remove(*chunk);
  table_->Drop(what.id).IgnoreError();
  faults_->NoteCheck(what.id, /*is_readable=*/true);  // it was read, and is gone
  // If there is no file, the reason is not stored.
  if (folder_ != nullptr) folder_->Quarantine(what.id, why).IgnoreError();
  Lose(what.id, facts);
}

}  // namespace ckv
