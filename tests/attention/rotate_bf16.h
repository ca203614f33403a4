// Rotates the bands of bf16 rows, in place and into a copy: what spliced and fetched rows are
// compared with.

#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/rope.h"

namespace ckv::test {

// `rows` are `count` rows of `width` values, `stride` values apart. The last d_rope of each are
// rotated.
inline void RotateBandsBf16(const RopeRotation& rotation, uint16_t* rows, uint32_t count,
                            uint32_t width, uint32_t stride) {
  RotateBandsFp8DsMla(rotation, reinterpret_cast<std::byte*>(rows), count, width * 2, stride * 2);
}

// CopyRotatedRows of `count` rows of `width` values, which are in_stride values apart in `in`.
inline void CopyRotatedBf16(const RopeRotation& rotation, const uint16_t* in, uint32_t in_stride,
                            uint16_t* out, uint32_t count, uint32_t width) {
  CopyRotatedRows(rotation, reinterpret_cast<const std::byte*>(in), size_t{in_stride} * 2,
                  reinterpret_cast<std::byte*>(out), count, width * 2);
}

}  // namespace ckv::test
