// When marks of chunks end, and chunks themselves: of the few that were pinned or put for a time.

#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "proto/clock.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it. A chunk that neither a pin nor a put gave a time
// costs nothing; one that has a time some 160 B.
class ChunkExpiry {
 public:
  struct Times {
    Instant kept_until = kInstantMax;  // of a kept chunk; kInstantMax: for good
    Duration ttl{0};                   // 0: the chunk stays
    Instant drop_at = kInstantMax;
    bool kept = false;
  };

  // The chunk is kept until then, whatever it was before.
  void Keep(const ChunkId& id, Instant until);
  // It is not kept any more.
  void Unkeep(const ChunkId& id);

  // The chunk is put for the first time, to be dropped when nobody put it again for `ttl`.
  void Put(const ChunkId& id, Duration ttl, Instant now);
  // It is put again. One that stays goes on to stay; 0 makes one stay that would not; else the
  // later of its two ends holds. Returns whether its ttl is another.
  bool PutAgain(const ChunkId& id, Duration ttl, Instant now);

  // Nothing of the chunk ends: it was dropped.
  void Forget(const ChunkId& id);

  // Null: nothing of it ends.
  const Times* Find(const ChunkId& id) const;
  // The first whose end has come: its mark's, or while it is not kept its own.
  std::optional<ChunkId> NextDue(Instant now) const;
  size_t size() const { return times_.size(); }

 private:
  static Instant DueOf(const Times& times) { return times.kept ? times.kept_until : times.drop_at; }
  // Of a chunk, which gets times if it has none; removed again where nothing ends.
  template <typename Change>
  void Edit(const ChunkId& id, Change change);

  absl::flat_hash_map<ChunkId, Times> times_;
  absl::btree_set<std::pair<Instant, ChunkId>> due_;  // those that end
};

}  // namespace ckv
