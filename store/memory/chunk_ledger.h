// The entries of the chunks of a table: who may read each, whether it is kept, and when it ends.

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

// The conditions under which Drop takes a chunk. All that are set must hold; without any, the chunk
// is always dropped.
struct DropIf {
  bool not_kept = false;        // no mark of Keep or KeepFor holds it
  bool in_memory_only = false;  // it has no file
  bool expired = false;         // its ttl has run out
  Duration idle_min{0};         // nobody put or touched it for at least this long
};

// The ledger of one ChunkTable (ChunkTable::ledger). The table opens an entry when it publishes a
// chunk and closes it when it drops the chunk; everyone else reads entries and changes marks.
// Thread-safe: an entry is guarded by its shard's lock, which is held for no other call. A store's
// callers use ChunkStore instead, which also saves the changes to disk and obeys them at eviction.
//
// An entry's readers are the tenants the chunk was put for; "" is everyone. An id names inputs that
// others may guess, so knowing it gives no right to the rows (I6).
class ChunkLedger {
 public:
  // Most readers of a chunk, unless it is put for everyone.
  static constexpr size_t kReaderCountMax = 64;

  // `clock` must outlive the ledger.
  explicit ChunkLedger(Clock* clock);
  ~ChunkLedger();
  ChunkLedger(const ChunkLedger&) = delete;
  ChunkLedger& operator=(const ChunkLedger&) = delete;

  // Opens the entry of a chunk that `tenant` put now. With a `ttl` above zero the chunk expires
  // when nobody puts it again for that long.
  void Open(const ChunkId& id, std::string_view tenant, Duration ttl);
  // Opens the entry of a chunk that was found on disk. Its ttl starts anew; a mark of KeepFor ends
  // when it would have.
  void Restore(const ChunkId& id, const ChunkFacts& facts);
  // Closes the entry if `only` allows it. `only.in_memory_only` is not looked at.
  //   NotFound            there is no entry.
  //   FailedPrecondition  a condition does not hold: the message says which.
  absl::Status Close(const ChunkId& id, const DropIf& only);

  // Returns whether the chunk has an entry and `tenant`, or everyone, is among its readers.
  bool MayRead(const ChunkId& id, std::string_view tenant) const;
  // Makes `tenant` a reader. "" replaces all others.
  //   NotFound            there is no entry.
  //   ResourceExhausted   the chunk already has kReaderCountMax readers.
  absl::Status AddReader(const ChunkId& id, std::string_view tenant);

  // Marks the chunk as kept until it is told otherwise, or lifts the mark.
  //   NotFound            there is no entry.
  absl::Status Keep(const ChunkId& id, bool keep);
  // Marks the chunk as kept for `time`. It replaces an earlier mark, even a longer one.
  //   NotFound            there is no entry.
  absl::Status KeepFor(const ChunkId& id, Duration time);
  // Returns whether the chunk has an entry that is marked as kept.
  bool IsKept(const ChunkId& id) const;

  // Notes that the chunk was put again with `ttl`. Zero makes it stay for good. A chunk that stays
  // for good already goes on doing so. Otherwise the later of the old and the new end holds.
  //   NotFound            there is no entry.
  absl::Status PutAgain(const ChunkId& id, Duration ttl);
  // Starts the chunk's idle time anew. Returns false if there is no entry.
  bool Touch(const ChunkId& id);
  struct Glance {
    bool kept = false;
    Duration idle{0};  // since the entry was opened or touched last
  };
  // Returns both of a chunk, for lists; neither kept nor idle if there is no entry.
  Glance GlanceAt(const ChunkId& id) const;

  // Returns what the entry says, or nothing if there is none. A mark's end is by the wall clock.
  std::optional<ChunkFacts> FactsOf(const ChunkId& id) const;
  // Returns FactsOf if it changed since it was opened or since the last call, and notes it as
  // saved. If saving it then fails, FactsNotSaved makes the next call return it again.
  std::optional<ChunkFacts> UnsavedFacts(const ChunkId& id);
  void FactsNotSaved(const ChunkId& id);

  // Returns whether a mark or a chunk has come to its end.
  bool AnyDue() const;
  struct Due {
    std::vector<ChunkId> unkept;     // chunks whose mark this call ended
    std::optional<ChunkId> expired;  // a chunk that is not kept and whose ttl has run out
  };
  // Ends the marks whose time is over, at most kMarkEndCountMax of them, and names one expired
  // chunk. The caller drops it with DropIf::expired, so that a put that comes in between saves it.
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
