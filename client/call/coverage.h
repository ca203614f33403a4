// Counts what is merged, so that an answer has every requested (chunk, row) exactly once (I1).

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace ckv {

// One call's ledger. Blocks of rows are merged in rising order, so the rows of each piece (one
// chunk of the call) are covered in rising order. One counter per piece therefore finds both a
// duplicate and a gap. Not thread-safe. Keeps its memory between calls.
class Coverage {
 public:
  // Starts a call of `piece_count` pieces and `row_count` query rows. Nothing is covered.
  void Begin(uint32_t piece_count, uint32_t row_count);

  // Call before rows [row_begin, row_begin + row_count) of `piece` are merged. After an error the
  // call must fail.
  //   Internal            some of the rows were covered before, rows before them are missing, or
  //                       they do not belong to this call.
  absl::Status Cover(uint32_t piece, uint32_t row_begin, uint32_t row_count);

  // Checks that every row of every piece was covered.
  //   Internal            names the first piece that was not.
  absl::Status CheckComplete() const;

 private:
  uint32_t row_count_ = 0;
  std::vector<uint32_t> next_row_;  // [piece_count] all rows before it are covered
};

}  // namespace ckv
