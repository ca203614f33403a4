// Near rows that lie in a copy which a holder on this host made once, for all its requesters.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "client/calls.h"
#include "client/near/near_rows.h"

namespace ckv {

// The holder compared the copy with the chunk's checksums and sealed it. So the rows are checked,
// and they stay as they are when the holder goes away.
class MappedRows final : public NearRows {
 public:
  explicit MappedRows(MappedChunk chunk) : chunk_(std::move(chunk)) {}
  std::span<const std::byte> layer(uint32_t l) const override { return chunk_.layer(l); }

 private:
  const MappedChunk chunk_;
};

}  // namespace ckv
