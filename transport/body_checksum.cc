#include "transport/body_checksum.h"

#include <algorithm>

#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "proto/base/xxh3.h"

namespace ckv {

uint32_t BodyChecksum(const FetchEntry& entry,
                      absl::FunctionRef<uint64_t(const StripePart&)> checksum_of) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const uint32_t token_begin = entry.gathered() ? 0 : entry.token_begin;
  const uint32_t token_end = token_begin + entry.token_count;
  for (uint32_t i = 0; i < entry.tensor_count; ++i) {
    StripePart part = {.tensor = entry.tensor_begin + i, .token_begin = token_begin};
    while (part.token_begin < token_end) {
      const uint32_t to_stripe_end = kStripeTokens - part.token_begin % kStripeTokens;
      part.token_count = std::min(to_stripe_end, token_end - part.token_begin);
      const uint64_t checksum = checksum_of(part);
      XXH3_64bits_update(&state, &checksum, sizeof(checksum));
      part.token_begin += part.token_count;
    }
  }
  return static_cast<uint32_t>(XXH3_64bits_digest(&state));
}

uint32_t BodyChecksum(const FetchEntry& entry, uint64_t row_bytes,
                      std::span<const std::byte> body) {
  CKV_CHECK(body.size() == row_bytes * entry.tensor_count * entry.token_count);
  size_t begin = 0;
  return BodyChecksum(entry, [&](const StripePart& part) {
    const std::span<const std::byte> rows = body.subspan(begin, part.token_count * row_bytes);
    begin += rows.size();
    return StripeChecksum(rows);
  });
}

uint32_t BodyChecksum(const FetchEntry& entry, uint64_t row_bytes, ScatterList body) {
  CKV_CHECK(body.bytes() == row_bytes * entry.tensor_count * entry.token_count);
  return BodyChecksum(entry, [&](const StripePart& part) {
    return StripeChecksum(body.TakeFront(part.token_count * row_bytes).spans());
  });
}

}  // namespace ckv
