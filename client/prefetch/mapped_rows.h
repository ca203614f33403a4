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
  MappedRows(MappedChunk chunk, uint32_t layers) : chunk_(std::move(chunk)) {
    constexpr size_t kPageBytes = 4096;
    for (uint32_t l = 0; l < layers; ++l) {
      const std::span<const std::byte> rows = chunk_.layer(l);
      for (size_t at = 0; at < rows.size(); at += kPageBytes)
        (void)*static_cast<const volatile std::byte*>(&rows[at]);
    }
  }
  std::span<const std::byte> layer(uint32_t l) const override { return chunk_.layer(l); }

 private:
  const MappedChunk chunk_;
};

}  // namespace ckv
