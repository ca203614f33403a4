#include "attention/paged/row_blocks.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

// No product of a block and its stride overflows.
constexpr uint64_t kCacheBytesMax = uint64_t{1} << 56;

}  // namespace

absl::Status CheckRowBlocks(const RowBlocks& blocks, uint32_t table_count, uint32_t block_count,
                            uint32_t row_stride_bytes) {
  if (blocks.block_rows == 0 ||
      blocks.block_stride_bytes < uint64_t{blocks.block_rows} * row_stride_bytes ||
      blocks.block_stride_bytes > kCacheBytesMax / std::max(1u, block_count)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("blocks of %d rows of %d bytes that are %d bytes apart", blocks.block_rows,
                        row_stride_bytes, blocks.block_stride_bytes));
  }
  for (const uint32_t block : std::span(blocks.table, table_count)) {
    if (block < block_count) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("block %d of a cache of %d", block, block_count));
  }
  return absl::OkStatus();
}

}  // namespace ckv
