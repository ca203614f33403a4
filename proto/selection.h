// The rows that each query row attends, as indices: an indexer's choice, never rotated.

#pragma once

#include <cstdint>

namespace ckv {

// Borrowed. Query rows come in groups of `group_rows` (the heads of one token, or 1); the group g
// attends the rows indices[g * k] .. indices[g * k + k - 1]. A kernel skips an index < 0 or >= the
// number of rows; a call (client/requester.h) may only have -1 for that. A duplicate counts twice,
// as it does in an indexer's softmax.
struct Selection {
  const int32_t* indices = nullptr;  // [ceil(rows / group_rows), k]
  uint32_t k = 0;                    // may be 0 with indices != nullptr: everything is empty
  uint32_t group_rows = 1;

  bool present() const { return indices != nullptr; }
};

}  // namespace ckv
