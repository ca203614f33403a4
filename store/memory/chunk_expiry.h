// When marks end and chunks expire, for the few chunks that were kept or put for a time.

#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "proto/base/clock.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it. A chunk without a time costs nothing, a chunk with
// one about 160 B.
class ChunkExpiry {
 public:
  struct Times {
    Instant kept_until = kInstantMax;  // end of the mark; kInstantMax means for good
    Duration ttl{0};                   // zero means the chunk stays
    Instant drop_at = kInstantMax;
    bool kept = false;
  };

  // Keeps the chunk until `until`. It replaces an earlier mark.
  void Keep(const ChunkId& id, Instant until);
  // Ends the mark.
  void Unkeep(const ChunkId& id);

  // Notes a first put. The chunk expires when nobody puts it again for `ttl`; zero means never.
  void Put(const ChunkId& id, Duration ttl, Instant now);
  // Notes another put. A chunk that stays goes on doing so, and zero makes it stay; otherwise the
  // later of the old and the new end holds. Returns whether the ttl changed.
  bool PutAgain(const ChunkId& id, Duration ttl, Instant now);

  // Forgets the chunk, because it was dropped.
  void Forget(const ChunkId& id);

  // Returns the chunk's times, or null if it has none.
  const Times* Find(const ChunkId& id) const;
  // Returns the chunk that was due first, if any is: a kept chunk when its mark ends, another when
  // it expires.
  std::optional<ChunkId> NextDue(Instant now) const;
  size_t size() const { return times_.size(); }

 private:
  static Instant DueOf(const Times& times) { return times.kept ? times.kept_until : times.drop_at; }
  // Changes a chunk's times, which are made if missing and removed if nothing ends any more.
  template <typename Change>
  void Edit(const ChunkId& id, Change change);

  absl::flat_hash_map<ChunkId, Times> times_;
  absl::btree_set<std::pair<Instant, ChunkId>> due_;  // chunks by when they are due
};

}  // namespace ckv
