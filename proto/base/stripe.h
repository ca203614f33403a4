// Stripes: runs of kStripeTokens rows of one layer of a chunk, counted from the chunk's first
// token (the last may be shorter). Rows are checksummed by the stripe once, when their chunk
// becomes whole, and a transfer carries a checksum of its stripes' checksums: so the holder reads
// no row a second time to send it, and what the requester finds right is right since it was stored.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckv {

// 36 KiB of 1152-byte rows: eight bytes each are 0.02 % of a chunk, and three make a transfer.
inline constexpr uint32_t kStripeTokens = 32;

constexpr uint32_t StripeCount(uint32_t token_count) {
  return token_count / kStripeTokens + (token_count % kStripeTokens != 0 ? 1 : 0);
}

// XXH3-64 of a stripe's rows; 0 bytes have one too.
uint64_t StripeChecksum(std::span<const std::byte> rows);
// The same of rows that lie in pieces, in their order.
uint64_t StripeChecksum(std::span<const std::span<std::byte>> pieces);

}  // namespace ckv
