// The rows that each query row attends, as indices chosen by an indexer. Indices are never rotated.

#pragma once

#include <cstdint>

namespace ckv {

// Borrowed. Query rows are in groups of `group_rows` (the heads of one token, or 1). Group g
// attends the rows indices[g * k] .. indices[g * k + k - 1]. A kernel skips an index < 0 or >= the
// number of rows. A call (client/requester.h) may use only -1 for an entry to skip. A duplicate
// counts twice, as it does in an indexer's softmax.
struct Selection {
  const int32_t* indices = nullptr;  // [ceil(rows / group_rows), k]
  uint32_t k = 0;                    // may be 0 with indices != nullptr: every result is then empty
  uint32_t group_rows = 1;

  bool present() const { return indices != nullptr; }
};

}  // namespace ckv
