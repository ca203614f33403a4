#include "server/batch/sparse_layer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"

namespace ckv {

PageRange LayerShape::PagesOf(uint32_t stripe) const {
  const uint64_t begin = uint64_t{stripe} * kStripeTokens * row_bytes;
  const uint64_t end = std::min(begin + kStripeTokens * row_bytes, bytes());
  constexpr uint64_t kPage = SparseLayer::kPageBytes;
  return {begin / kPage, (end + kPage - 1) / kPage};
}

void SparseLayer::Unmap::operator()(std::byte* memory) const {
  if (bytes != 0) munmap(memory, bytes);
}

SparseLayer SparseLayer::Over(const LayerShape& shape, std::byte* memory) {
  std::memset(memory, 0, shape.bytes());
  return SparseLayer(shape, memory, /*bytes=*/0);
}

absl::StatusOr<SparseLayer> SparseLayer::Map(const LayerShape& shape) {
  // Zero bytes cannot be mapped.
  const size_t bytes = std::max<uint64_t>(shape.bytes(), 1);
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no memory for %d bytes of a chunk's rows: %s", bytes, std::strerror(errno)));
  }
  madvise(base, bytes, MADV_NOHUGEPAGE);  // refused only by a system that has no huge pages
  return SparseLayer(shape, static_cast<std::byte*>(base), bytes);
}

absl::Status SparseLayer::Read(const ChunkRows& from, uint32_t layer,
                               std::span<const uint32_t> stripes) {
  for (size_t i = 0; i < stripes.size();) {
    size_t end = i + 1;  // the end of a run of neighbours, which is one read
    while (end < stripes.size() && stripes[end] == stripes[end - 1] + 1) ++end;
    const uint32_t token = stripes[i] * kStripeTokens;
    const uint32_t count =
        std::min((stripes[end - 1] + 1) * kStripeTokens, shape_.token_count) - token;
    CKV_RETURN_IF_ERROR(from.Read(
        layer, token, count, {memory_.get() + token * shape_.row_bytes, count * shape_.row_bytes}));
    i = end;
  }
  return absl::OkStatus();
}

void SparseLayer::Free(const PageRange& pages) {
  if (pages.count() == 0) return;
  CKV_CHECK(memory_.get_deleter().bytes != 0);
  // Past the last byte there is the rest of its page, which is mapped too.
  const int freed =
      madvise(memory_.get() + pages.begin * kPageBytes, pages.count() * kPageBytes, MADV_DONTNEED);
  CKV_CHECK(freed == 0);
}

}  // namespace ckv
