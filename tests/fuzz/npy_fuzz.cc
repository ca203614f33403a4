// Any bytes as a .npy file: what is accepted must hold what its header promises, and every byte it
// gives out must be there to read.

#include "store/formats/npy.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/base/status.h"
#include "store/memory/chunk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto file = ckv::NpyFile::Parse(bytes);
  if (!file.ok()) {
    CKV_CHECK(absl::IsInvalidArgument(file.status()));
    return 0;
  }
  const std::span<const std::byte> elements = file->data();
  CKV_CHECK(elements.empty() || (elements.data() >= bytes.data() &&
                                 elements.data() + elements.size() == bytes.data() + size));
  CKV_CHECK(file->shape().size() <= ckv::kNpyRankMax);
  uint64_t due = file->dtype().item_bytes;
  CKV_CHECK(due >= 1 && due <= ckv::kNpyItemBytesMax);
  for (const uint64_t axis : file->shape()) due *= axis;
  CKV_CHECK(due == elements.size());
  CKV_CHECK(!file->ShapeText().empty());
  ckv::ChecksumOf(elements);  // reads every byte, so that a sanitizer sees one that is not there
  return 0;
}
