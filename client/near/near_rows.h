// Rows of chunks that lie here, and which chunks of a context they are.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace ckv {

// A chunk's rows of all layers at their canonical positions, checked. Nobody writes them any more.
// They live as long as anyone has them.
class NearRows {
 public:
  virtual ~NearRows() = default;
  // Rows of layer l < geometry.layers: [token_count][row_bytes], 64-byte aligned.
  virtual std::span<const std::byte> layer(uint32_t l) const = 0;
};

// The near rows of one context: an entry for each of its chunks, in the order of the tree. An entry
// is null if the chunk is not near. Immutable; a change makes another table.
using NearTable = std::vector<std::shared_ptr<const NearRows>>;

}  // namespace ckv
