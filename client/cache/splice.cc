#include "client/cache/splice.h"

#include <algorithm>

#include "proto/base/status.h"

namespace ckv {

RopeRotation SpliceRotation(const Geometry& geometry, int64_t delta) {
  const bool turns = geometry.d_rope != 0 && geometry.rope.style != RopeStyle::kNone;
  return RopeRotation(geometry.rope, turns ? geometry.d_rope : 0, turns ? delta : 0);
}

void Splice(const RopeRotation& rotation, const Geometry& geometry, std::span<const std::byte> rows,
            const SpliceTarget& target) noexcept {
  const uint32_t row_bytes = geometry.row_bytes();
  CKV_CHECK(rows.size() % row_bytes == 0);
  const uint64_t count = rows.size() / row_bytes;
  const uint64_t row_count_max = uint64_t{target.table.size()} * kCacheBlockTokens;
  CKV_CHECK(target.row_begin <= row_count_max && count <= row_count_max - target.row_begin);
  const uint64_t end = target.row_begin + count;
  for (uint64_t row = target.row_begin; row < end;) {
    // Blocks that are neighbours are one copy.
    size_t block = row / kCacheBlockTokens;
    const uint64_t slot =
        uint64_t{target.table[block]} * kCacheBlockTokens + row % kCacheBlockTokens;
    while ((block + 1) * kCacheBlockTokens < end &&
           target.table[block + 1] == target.table[block] + 1)
      ++block;
    const uint64_t run = std::min<uint64_t>((block + 1) * kCacheBlockTokens, end) - row;
    CKV_CHECK((slot + run) * row_bytes <= target.layer.size());
    CopyRotatedRows(rotation, rows.data() + (row - target.row_begin) * row_bytes, row_bytes,
                    target.layer.data() + slot * row_bytes, static_cast<uint32_t>(run), row_bytes);
    row += run;
  }
}

void SpliceInPlace(const RopeRotation& rotation, const Geometry& geometry,
                   std::span<std::byte> rows) noexcept {
  const uint32_t row_bytes = geometry.row_bytes();
  CKV_CHECK(rows.size() % row_bytes == 0);
  const auto count = static_cast<uint32_t>(rows.size() / row_bytes);
  // The band of either dtype is its last bytes.
  RotateBandsFp8DsMla(rotation, rows.data(), count, row_bytes, row_bytes);
}

}  // namespace ckv
