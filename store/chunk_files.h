// Keeps the files of a store's chunks consistent with its table: makes chunks durable, saves their
// facts, and takes out those with a damaged file.

#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/chunk_file_locks.h"
#include "store/damage_log.h"
#include "store/disk/chunk_folder.h"
#include "store/memory/chunk_table.h"
#include "store/memory/shadow_table.h"
#include "store/store_faults.h"

namespace ckv {

// Thread-safe. Waits for the device.
class ChunkFiles {
 public:
  // All arguments must outlive this object. `folder` is null if the store has no files.
  ChunkFiles(ChunkFolder* folder, ChunkTable* table, ShadowTable* shadows, StoreFaults* faults)
      : folder_(folder), table_(table), shadows_(shadows), faults_(faults) {}

  // Null if the store has no files.
  ChunkFolder* folder() const { return folder_; }
  ChunkFileLocks* locks() { return &locks_; }
  DamageLog& damage() { return damage_; }
  const DamageLog& damage() const { return damage_; }

  // OK without a folder. Errors are those of ChunkFolder::CheckThere.
  absl::Status CheckThere() const;

  // Opens the file of a chunk. A damaged file is treated as by Damaged.
  absl::StatusOr<ChunkFileReader> Open(ChunkLocator locator);
  // Quarantines and drops a chunk whose file is damaged. Returns the error for the caller.
  absl::Status Damaged(ChunkLocator locator, const ChunkId& id, const absl::Status& status);

  // Notes whether the device could read the chunk's file.
  void NoteRead(const ChunkId& id, const absl::Status& status);
  // Clears the fault of a chunk that was dropped while its file was read or checked.
  void ForgetIfDropped(const ChunkId& id);
  // Notes a chunk that was removed because it was damaged.
  void Lose(const ChunkId& id, const ChunkFacts& facts);

  // Saves a chunk's facts if they changed. Takes the lock of the chunk's file.
  absl::Status SaveFactsNow(const ChunkId& id);

  // --- With the chunk's file locked. ---

  // Saves a chunk's facts if they changed.
  absl::Status SaveFacts(const ChunkId& id);
  // Writes the file of a chunk that may be in memory only, as a copy of a replica keeper. Its
  // putter receives AlreadyExists, so the chunk must outlive the process.
  //   Aborted             the chunk was dropped just now.
  absl::Status MakeDurable(const ChunkId& id, const Geometry& geometry, std::string_view tenant);
  // Removes the chunk from the table and quarantines its file.
  void TakeOut(const ChunkSummary& what, std::string_view why);

 private:
  ChunkFolder* const folder_;
  ChunkTable* const table_;
  ShadowTable* const shadows_;
  StoreFaults* const faults_;
  ChunkFileLocks locks_;
  DamageLog damage_;
};

}  // namespace ckv
