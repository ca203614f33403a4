// The placed chunks that holders have reported as lacking.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe. A set never changes, because threads that walk over corpora share it.
class LackingChunks {
 public:
  using Chunks = absl::flat_hash_set<ChunkId>;

  // The limit of ids of all holders together, at some 40 bytes each. Ids beyond it are left out, so
  // their chunks count as present.
  explicit LackingChunks(uint64_t count_max) : count_max_(count_max) {}

  // Takes a page of a holder's report. The first page begins the report, and the last one makes it
  // replace the previous report. Returns the ids whose state changed: the holder lacks them now and
  // did not before, or the reverse. Returns none before the last page.
  std::vector<ChunkId> Take(const HolderId& holder, std::span<const ChunkId> ids, bool first,
                            bool last);
  // Call when the holder's lease ends: its next incarnation reports again.
  void Remove(const HolderId& holder);

  bool Lacks(const HolderId& holder, const ChunkId& id) const;
  const std::map<HolderId, std::shared_ptr<const Chunks>>& all() const { return lacking_; }
  bool empty() const { return lacking_.empty(); }
  uint64_t count() const { return count_; }

 private:
  const uint64_t count_max_;
  uint64_t count_ = 0;
  std::map<HolderId, std::shared_ptr<const Chunks>> lacking_;  // no set is empty
  std::map<HolderId, Chunks> begun_;                           // unfinished reports
};

}  // namespace ckv
