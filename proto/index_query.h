// How the vectors of an index query are stored (IndexShape in proto/geometry.h).

#pragma once

#include <cstdint>

namespace ckv {

enum class IndexQueryDtype : uint8_t {
  kBf16 = 1,
  kFp8 = 2,  // e4m3; scales of vectors are in their weights
};

// Returns the bytes of one value.
constexpr uint32_t ValueBytes(IndexQueryDtype dtype) {
  return dtype == IndexQueryDtype::kBf16 ? 2 : 1;
}

inline constexpr uint32_t kIndexTopMax = 1u << 14;  // rows that a query selects; DeepSeek's 2,048

}  // namespace ckv
