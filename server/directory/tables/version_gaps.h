// The versions that a directory's folder never gave, between those that it did.
//
// A directory gives versions from the wall clock's milliseconds on, at least, so each of its lives
// leaves some out. If one of these was given by this folder all the same, it was in a life that the
// folder does not remember. Then the folder is an old copy, or has lost its end.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/directory/log/change.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it.
class VersionGaps {
 public:
  // One for each start, so that the memory reaches back further than holders stay away. Beyond it
  // the first one is forgotten: its versions count as given and gone.
  static constexpr size_t kCountMax = 4096;

  // Adds a gap that begins where the last one ends, or later. An empty one is left out.
  void Add(VersionGap gap);
  bool Has(uint64_t version) const;
  const std::vector<VersionGap>& all() const { return gaps_; }

 private:
  std::vector<VersionGap> gaps_;  // rising, apart from each other
};

}  // namespace ckv
