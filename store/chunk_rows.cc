#include "store/chunk_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "store/chunk_files.h"

namespace ckv {

const ChunkInfo& ChunkRows::info() const {
  return file_ ? file_->header().info : pin_.chunk().info();
}

const Geometry& ChunkRows::geometry() const {
  return file_ ? file_->header().geometry : pin_.chunk().geometry();
}

absl::Status ChunkRows::Read(uint32_t tensor, uint32_t token_begin, uint32_t token_count,
                             std::span<std::byte> rows) const {
  const uint32_t tokens = info().token_count();
  const uint32_t tensors = geometry().tensor_count();
  if (tensor >= tensors || token_begin > tokens || token_count > tokens - token_begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "chunk %s: tensor %d, tokens %d to %d of %d tensors and %d tokens", info().id.ShortHex(),
        tensor, token_begin, uint64_t{token_begin} + token_count, tensors, tokens));
  }
  const uint64_t row_bytes = geometry().tensor_row_bytes(tensor);
  CKV_CHECK(rows.size() == token_count * row_bytes);
  if (token_count == 0) return absl::OkStatus();
  if (!file_) {
    std::memcpy(rows.data(), pin_.chunk().tensor(tensor).data() + token_begin * row_bytes,
                rows.size());
    return absl::OkStatus();
  }
  absl::Status read = ReadFile(tensor, token_begin, token_begin + token_count, rows);
  return absl::IsDataLoss(read) ? files_->Damaged(locator_, info().id, read) : read;
}

// Whole stripes straight into `rows`; the ones at the ends that are cut by way of a buffer.
absl::Status ChunkRows::ReadFile(uint32_t tensor, uint32_t begin, uint32_t end,
                                 std::span<std::byte> rows) const {
  const uint64_t row_bytes = geometry().tensor_row_bytes(tensor);
  const uint32_t tokens = info().token_count();
  std::vector<std::byte> cut;
  for (uint32_t at = begin; at < end;) {
    const uint32_t stripe = at / kStripeTokens;
    const uint32_t stripe_begin = stripe * kStripeTokens;
    // Up to where whole stripes end: the chunk's end is the end of its last stripe.
    const uint32_t whole_end = end == tokens ? tokens : end / kStripeTokens * kStripeTokens;
    const std::span<std::byte> rest = rows.subspan((at - begin) * row_bytes);
    if (at == stripe_begin && whole_end > at) {
      const uint32_t count = (whole_end - at + kStripeTokens - 1) / kStripeTokens;
      CKV_RETURN_IF_ERROR(
          file_->ReadStripes(tensor, stripe, count, rest.first((whole_end - at) * row_bytes)));
      at = whole_end;
      continue;
    }
    cut.resize(file_->StripeBytes(tensor, stripe, 1));
    CKV_RETURN_IF_ERROR(file_->ReadStripes(tensor, stripe, 1, cut));
    const uint32_t until = std::min({end, stripe_begin + kStripeTokens, tokens});
    std::memcpy(rest.data(), cut.data() + (at - stripe_begin) * row_bytes,
                (until - at) * row_bytes);
    at = until;
  }
  return absl::OkStatus();
}

}  // namespace ckv
