// Tracks when keep marks end and when chunks expire, for the few chunks with a time limit.

#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "proto/base/clock.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe: the owner's lock guards it. A chunk with a time limit costs about 160 B, any
// other chunk nothing.
class ChunkExpiry {
 public:
  struct Times {
    Instant kept_until = kInstantMax;  // end of the mark; kInstantMax means never
    Duration ttl{0};                   // zero means the chunk never expires
    Instant drop_at = kInstantMax;
    bool kept = false;
  };

  // Marks the chunk as kept until `until`. Replaces an earlier mark.
  void Keep(const ChunkId& id, Instant until);
  // Ends the mark.
  void Unkeep(const ChunkId& id);

  // Records a first put. The chunk expires if it is not put again for `ttl`; zero means never.
  void Put(const ChunkId& id, Duration ttl, Instant now);
  // Records another put. A chunk that never expires stays that way, and a `ttl` of zero makes it
  // never expire. Otherwise the later of the old and the new end applies. Returns whether the ttl
  // changed.
  bool PutAgain(const ChunkId& id, Duration ttl, Instant now);

  // Removes the chunk's times, because it was dropped.
  void Forget(const ChunkId& id);

  // Returns the chunk's times, or null if it has none.
  const Times* Find(const ChunkId& id) const;
  // Returns the chunk that was due first, if any is due. A kept chunk is due when its mark ends,
  // another chunk when it expires.
  std::optional<ChunkId> NextDue(Instant now) const;
  size_t size() const { return times_.size(); }

 private:
  static Instant DueOf(const Times& times) { return times.kept ? times.kept_until : times.drop_at; }
  // Applies `change` to a chunk's times: creates them if they are missing, and removes them if they
  // contain no end afterwards.
  template <typename Change>
  void Edit(const ChunkId& id, Change change);

  absl::flat_hash_map<ChunkId, Times> times_;
  absl::btree_set<std::pair<Instant, ChunkId>> due_;  // chunks by when they are due
};

}  // namespace ckv
