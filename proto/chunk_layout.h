// The places of a chunk's tensors in its bytes. They are the same in a holder's memory, in the
// chunk's file and in a requester's local row cache.

#pragma once

#include <cstdint>

#include "proto/geometry.h"

namespace ckv {

// Tensors are behind one another, each [token][row] and padded with zeros to 64 bytes. A value
// type, without memory of its own.
class ChunkLayout {
 public:
  static constexpr uint64_t kAlignment = 64;

  ChunkLayout() = default;
  // `geometry` and `token_count` are within their limits, so that no size wraps.
  ChunkLayout(const Geometry& geometry, uint32_t token_count);

  uint32_t tensor_count() const { return tensor_count_; }
  // `tensor` is below tensor_count().
  uint32_t row_bytes(uint32_t tensor) const { return GroupOf(tensor).row_bytes; }
  // Returns the bytes of a tensor's rows: the tokens x row_bytes.
  uint64_t bytes(uint32_t tensor) const { return GroupOf(tensor).bytes; }
  // Returns the bytes of a tensor and its padding.
  uint64_t padded_bytes(uint32_t tensor) const { return GroupOf(tensor).padded_bytes; }
  // Returns where a tensor begins, a multiple of kAlignment.
  uint64_t begin(uint32_t tensor) const {
    const Group& group = GroupOf(tensor);
    return group.begin + (tensor - group.first) * group.padded_bytes;
  }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  // Tensors with rows of one size.
  struct Group {
    uint32_t first = 0;
    uint32_t row_bytes = 0;
    uint64_t bytes = 0, padded_bytes = 0;
    uint64_t begin = 0;
  };
  const Group& GroupOf(uint32_t tensor) const { return tensor < keys_.first ? rows_ : keys_; }

  Group rows_;  // one tensor a layer
  Group keys_;  // index keys
  uint32_t tensor_count_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace ckv
