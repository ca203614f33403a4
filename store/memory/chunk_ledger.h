// The ledger of a chunk table: which tenants may read each chunk, whether it is kept, and when it
// expires.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/ids.h"
#include "store/memory/chunk_facts.h"

namespace ckv {

// The conditions under which a chunk is dropped. All that are set must hold; if none is set, the
// chunk is always dropped.
struct DropIf {
  bool not_kept = false;        // it has no mark of Keep or KeepFor
  bool in_memory_only = false;  // it has no file
  bool expired = false;         // its ttl has run out
  Duration idle_min{0};         // not put or touched for at least this long
};

// The ledger of one ChunkTable (ChunkTable::ledger). The table opens an entry when it publishes a
// chunk and closes it when it drops the chunk; other callers read entries and change marks.
// Thread-safe: each entry is guarded by its shard's lock, which is held only within one call.
// Callers of a store use ChunkStore instead, which also saves the changes to disk and applies them
// at eviction.
//
// An entry's readers are the tenants for which the chunk was put; "" means everyone. An id is
// derived from inputs that others may guess, so an id alone gives no right to the rows (I6).
class ChunkLedger {
 public:
  // The maximum number of readers of a chunk that is not put for everyone.
  static constexpr size_t kReaderCountMax = 64;

  // `clock` must outlive the ledger.
  explicit ChunkLedger(Clock* clock);
  ~ChunkLedger();
  ChunkLedger(const ChunkLedger&) = delete;
  ChunkLedger& operator=(const ChunkLedger&) = delete;

  // Opens the entry of a chunk that `tenant` puts now. If `ttl` is above zero, the chunk expires
  // when it is not put again for that long.
  void Open(const ChunkId& id, std::string_view tenant, Duration ttl);
  // Opens the entry of a chunk that was found on disk. Its ttl starts again; a KeepFor mark still
  // ends at its original time.
  void Restore(const ChunkId& id, const ChunkFacts& facts);
  // Closes the entry if `only` allows it. Ignores `only.in_memory_only`.
  //   NotFound            there is no entry.
  //   FailedPrecondition  a condition does not hold; the message names it.
  absl::Status Close(const ChunkId& id, const DropIf& only);

  // Returns whether the chunk has an entry and `tenant`, or everyone, is among its readers.
  bool MayRead(const ChunkId& id, std::string_view tenant) const;
  // Makes `tenant` a reader. "" makes everyone a reader, and replaces all others.
  //   NotFound            there is no entry.
  //   ResourceExhausted   the chunk already has kReaderCountMax readers.
  absl::Status AddReader(const ChunkId& id, std::string_view tenant);

  // Marks the chunk as kept without a time limit, or removes the mark.
  //   NotFound            there is no entry.
  absl::Status Keep(const ChunkId& id, bool keep);
  // Marks the chunk as kept for `time`. Replaces an earlier mark, even a longer one.
  //   NotFound            there is no entry.
  absl::Status KeepFor(const ChunkId& id, Duration time);
  // Returns whether the chunk has an entry that is marked as kept.
  bool IsKept(const ChunkId& id) const;

  // Records that the chunk was put again with `ttl`. A chunk that never expires stays that way, and
  // a `ttl` of zero makes it never expire. Otherwise the later of the old and the new end applies.
  //   NotFound            there is no entry.
  absl::Status PutAgain(const ChunkId& id, Duration ttl);
  // Resets the chunk's idle time to zero. Returns false if there is no entry.
  bool Touch(const ChunkId& id);
  struct Glance {
    bool kept = false;
    Duration idle{0};  // since the entry was opened or touched last
  };
  // Returns both values for lists of chunks. Without an entry, the chunk is neither kept nor idle.
  Glance GlanceAt(const ChunkId& id) const;

  // Returns the facts in the entry, or nothing if there is none. A mark's end is in wall-clock
  // time.
  std::optional<ChunkFacts> FactsOf(const ChunkId& id) const;
  // Returns FactsOf if the facts are not saved, and marks them as saved. They are unsaved after a
  // change, and after Open with a `ttl`. If saving them then fails, FactsNotSaved makes the next
  // call return them again.
  std::optional<ChunkFacts> UnsavedFacts(const ChunkId& id);
  void FactsNotSaved(const ChunkId& id);

  // Returns whether any mark has ended or any chunk has expired.
  bool AnyDue() const;
  struct Due {
    std::vector<ChunkId> unkept;     // chunks whose mark this call ended
    std::optional<ChunkId> expired;  // a chunk that is not kept and whose ttl has run out
  };
  // Removes the marks that have ended, at most kMarkEndCountMax, and stops at the first expired
  // chunk. The caller drops that chunk with DropIf::expired, so that a put in between saves it.
  Due TakeDue();
  static constexpr size_t kMarkEndCountMax = 256;

 private:
  struct Entry;
  struct Shard;
  static constexpr size_t kShardCount = 64;

  Shard& ShardOf(const ChunkId& id) const;
  absl::Status SetKept(const ChunkId& id, bool keep, Instant until);

  Clock* const clock_;
  const std::unique_ptr<Shard[]> shards_;
};

}  // namespace ckv
