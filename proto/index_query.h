// The queries of an index (IndexShape in proto/geometry.h).

#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/geometry.h"

namespace ckv {

enum class IndexQueryDtype : uint8_t {
  kBf16 = 1,
  kFp8 = 2,  // e4m3; scales of vectors are in their weights
};

// Returns the bytes of one value.
constexpr uint32_t ValueBytes(IndexQueryDtype dtype) {
  return dtype == IndexQueryDtype::kBf16 ? 2 : 1;
}

// The index queries of consecutive tokens at one layer. Borrowed, at any address.
struct IndexQueryView {
  IndexQueryDtype dtype = IndexQueryDtype::kFp8;
  const std::byte* q = nullptr;    // [tokens][heads][dim]
  const float* weights = nullptr;  // [tokens][heads]
  uint32_t tokens = 0;

  // Returns the bytes of one token's vectors.
  size_t token_bytes(const IndexShape& shape) const {
    return size_t{shape.heads} * shape.dim * ValueBytes(dtype);
  }
};

inline constexpr uint32_t kIndexTopMax = 1u << 14;  // rows that a query selects; DeepSeek's 2,048

}  // namespace ckv
