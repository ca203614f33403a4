// Local rows in a shared copy that a holder on this host made once for all its requesters.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "client/calls.h"
#include "client/context/local_rows.h"

namespace ckv {

// The holder compared the copy with the chunk's checksums and sealed it. So the rows are verified,
// and remain unchanged when the holder exits.
class MappedRows final : public LocalRows {
 public:
  // Touches every page, so that no call waits for page faults: 64 MiB take some milliseconds.
  MappedRows(MappedChunk chunk, uint32_t tensors) : chunk_(std::move(chunk)) {
    constexpr size_t kPageBytes = 4096;
    for (uint32_t t = 0; t < tensors; ++t) {
      const std::span<const std::byte> rows = chunk_.tensor(t);
      for (size_t at = 0; at < rows.size(); at += kPageBytes)
        (void)*static_cast<const volatile std::byte*>(&rows[at]);
    }
  }
  std::span<const std::byte> tensor(uint32_t t) const override { return chunk_.tensor(t); }

 private:
  const MappedChunk chunk_;
};

}  // namespace ckv
