#include "proto/chunk_layout.h"

namespace ckv {

ChunkLayout::ChunkLayout(const Geometry& geometry, uint32_t token_count)
    : tensor_count_(geometry.tensor_count()) {
  const auto lay_out = [&](Group& group, uint32_t first, uint32_t count) {
    group.first = first;
    group.begin = total_bytes_;
    if (count == 0) return;
    group.row_bytes = geometry.tensor_row_bytes(first);
    group.bytes = uint64_t{token_count} * group.row_bytes;
    group.padded_bytes = (group.bytes + kAlignment - 1) / kAlignment * kAlignment;
    total_bytes_ += count * group.padded_bytes;
  };
  lay_out(rows_, 0, geometry.layers);
  lay_out(keys_, geometry.layers, tensor_count_ - geometry.layers);
}

}  // namespace ckv
