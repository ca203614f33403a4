// The blocks of an engine's paged cache, as the place of cKV rows.

#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace ckv {

// Row i is row i % block_rows of the block table[i / block_rows]. Block b begins
// b x block_stride_bytes behind the first byte of block 0.
struct RowBlocks {
  const uint32_t* table = nullptr;  // in host memory; null if rows are not paged
  uint32_t block_rows = 0;
  uint64_t block_stride_bytes = 0;

  friend bool operator==(const RowBlocks&, const RowBlocks&) = default;
};

// Checks a caller's blocks: rows `row_stride_bytes` apart fit in a block, and a cache of
// `block_count` blocks has each of the table's first `table_count`. No address of them overflows
// after that.
//   InvalidArgument     one of these does not hold. The text says which, and names no caller.
absl::Status CheckRowBlocks(const RowBlocks& blocks, uint32_t table_count, uint32_t block_count,
                            uint32_t row_stride_bytes);

}  // namespace ckv
