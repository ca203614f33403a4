// The checksum of a fetched body. It is the low half of XXH3-64 over the checksums of the body's
// parts (proto/base/stripe.h; u64 little-endian), in the order of [tensor][token].
//
// For consecutive rows, a part is the rows within one stripe of the chunk. The store keeps the
// checksum of each whole stripe, so a holder that sends whole stripes hashes 8 bytes per 36 KiB.
// For gathered rows (selected rows, or slices), the store has no checksums. There, a part is
// kStripeTokens rows as they are sent, counted from the first row of each tensor in the body.

#pragma once

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "transport/scatter_list.h"
#include "transport/wire.h"

namespace ckv {

// Rows [token_begin, token_begin + token_count) of `tensor`. All are in one stripe: of the chunk,
// or of the gathered rows of the tensor.
struct StripePart {
  uint32_t tensor = 0;
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
};

// Computes the checksum of the body of `entry`; `checksum_of` returns the checksum of one part.
uint32_t BodyChecksum(const FetchEntry& entry,
                      absl::FunctionRef<uint64_t(const StripePart&)> checksum_of);

// Computes the checksum from `body`: the rows of `entry` one after another, row_bytes each as sent.
// body.size() is tensor_count x token_count x row_bytes.
uint32_t BodyChecksum(const FetchEntry& entry, uint64_t row_bytes, std::span<const std::byte> body);
// The same for a body scattered over memory; body.bytes() is that product.
uint32_t BodyChecksum(const FetchEntry& entry, uint64_t row_bytes, ScatterList body);

}  // namespace ckv
