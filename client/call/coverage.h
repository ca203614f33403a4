// Counts what is merged, so that an answer has every requested (chunk, row) exactly once (I1).

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace ckv {

// One call's ledger. The rows of each piece (one chunk of the call) are covered in rising order,
// because blocks of rows are merged in rising order: so one counter a piece finds both a duplicate
// and a gap. Not thread-safe; keeps its memory between calls.
class Coverage {
 public:
  // Starts a call of `piece_count` pieces and `row_count` query rows, nothing covered.
  void Begin(uint32_t piece_count, uint32_t row_count);

  // Rows [row_begin, row_begin + row_count) of `piece` are about to be merged.
  //   Internal            some of them were covered before, or rows before them are missing, or
  //                       they are not of this call: the call must fail.
  absl::Status Cover(uint32_t piece, uint32_t row_begin, uint32_t row_count);

  // Whether every row of every piece was covered.
  //   Internal            names the first piece that was not.
  absl::Status CheckComplete() const;

 private:
  uint32_t row_count_ = 0;
  std::vector<uint32_t> next_row_;  // [piece_count] rows before it are covered
};

}  // namespace ckv
