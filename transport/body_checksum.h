// The checksum of a fetched body: the low half of XXH3-64 over the checksums (proto/stripe.h, u64
// little-endian) of the parts of the body, in the order of [layer][token].
//
// Of a run, the parts are what it has in each stripe of the chunk. A part that is a whole stripe
// has the checksum that the store keeps, so a holder whose requester asks for whole stripes hashes
// 8 bytes in 36 KiB. Of gathered rows (chosen ones, or slices), they are kStripeTokens rows each as
// they are sent, counted from the first row of each layer in the body: the store has no checksum of
// those.

#pragma once

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "transport/scatter_list.h"
#include "transport/wire.h"

namespace ckv {

// Rows [token_begin, token_begin + token_count) of `layer`, all of one stripe: of the chunk, or of
// the layer's gathered rows.
struct StripePart {
  uint32_t layer = 0;
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
};

// `checksum_of` gives each part's.
uint32_t BodyChecksum(const FetchEntry& entry,
                      absl::FunctionRef<uint64_t(const StripePart&)> checksum_of);

// Of `body`, the rows of `entry` one after another, each of row_bytes as sent; body.size() is
// layer_count x token_count x row_bytes.
uint32_t BodyChecksum(const FetchEntry& entry, uint64_t row_bytes, std::span<const std::byte> body);
// The same where the body lies in pieces; body.bytes() is as much.
uint32_t BodyChecksum(const FetchEntry& entry, uint64_t row_bytes, ScatterList body);

}  // namespace ckv
