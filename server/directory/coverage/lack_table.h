// The placed chunks that holders have said they lack.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "proto/ids.h"

namespace ckv {

// Not thread-safe. A set is shared with those who walk over corpora meanwhile, and never changed.
class LackTable {
 public:
  using Chunks = absl::flat_hash_set<ChunkId>;

  // Ids of all holders together: some 40 bytes each. Later ones are left out.
  explicit LackTable(uint64_t count_max) : count_max_(count_max) {}

  // Takes a page of a holder's report. The first page begins it, and the last one puts it in place
  // of the report before. Returns the ids that the holder lacks now and did not before, or the
  // other way round; none before the last page.
  std::vector<ChunkId> Take(const HolderId& holder, std::span<const ChunkId> ids, bool first,
                            bool last);
  // Call when the holder's lease ends: the next life tells anew.
  void Forget(const HolderId& holder);

  bool Lacks(const HolderId& holder, const ChunkId& id) const;
  const std::map<HolderId, std::shared_ptr<const Chunks>>& all() const { return lacking_; }
  bool empty() const { return lacking_.empty(); }
  uint64_t count() const { return count_; }

 private:
  const uint64_t count_max_;
  uint64_t count_ = 0;
  std::map<HolderId, std::shared_ptr<const Chunks>> lacking_;  // no set is empty
  std::map<HolderId, Chunks> begun_;                           // reports that have not ended
};

}  // namespace ckv
