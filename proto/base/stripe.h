// Stripes: the units of a chunk's checksums. A stripe is kStripeTokens adjacent rows of one layer,
// counted from the chunk's first token; the last may be shorter. Each stripe is checksummed once,
// when its chunk is complete. A transfer carries a checksum of its stripes' checksums, so the
// holder does not read the rows a second time to send them. If the requester's check passes, the
// rows are as they were stored.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckv {

// 36 KiB of 1152-byte rows. Eight bytes per stripe are 0.02 % of a chunk, and three stripes make
// one transfer.
inline constexpr uint32_t kStripeTokens = 32;

constexpr uint32_t StripeCount(uint32_t token_count) {
  return token_count / kStripeTokens + (token_count % kStripeTokens != 0 ? 1 : 0);
}

// Returns the XXH3-64 of a stripe's rows. Empty `rows` have one too.
uint64_t StripeChecksum(std::span<const std::byte> rows);
// The same for rows scattered over spans, in their order.
uint64_t StripeChecksum(std::span<const std::span<std::byte>> spans);

}  // namespace ckv
