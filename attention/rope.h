// RoPE: frequencies (plain and YaRN), and the rotation of bands by a position or a delta.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/partial.h"
#include "proto/geometry.h"

namespace ckv {

// Returns the d_rope / 2 angular frequencies, in radians per position, as f64.
//   plain   theta^(-2i / d_rope)
//   YaRN    arXiv:2309.00071 eq. 23 with DeepSeek's correction range. Pairs that make more than
//           beta_fast rotations over original_max_position keep the plain frequency. Pairs that
//           make fewer than beta_slow get plain / factor. Between them is a linear ramp, whose ends
//           are rounded outwards to whole pairs.
std::vector<double> RopeFrequencies(const RopeParams& params, uint32_t d_rope);

// The cos and sin of one rotation, ready to apply. Angles are computed in f64 and reduced before
// they are rounded to f32. In f32 they would err by 5.6e-3 rad at position 160,000.
class RopeRotation {
 public:
  // Makes the rotation by `delta` positions. A negative delta rotates back; delta = 0 is the
  // identity.
  RopeRotation(const RopeParams& params, uint32_t d_rope, int64_t delta);

  bool is_identity() const { return identity_; }
  RopeStyle style() const { return style_; }
  uint32_t d_rope() const { return d_rope_; }
  std::span<const float> cos() const { return cos_; }  // f32 [d_rope / 2]
  std::span<const float> sin() const { return sin_; }

 private:
  bool identity_;
  RopeStyle style_;
  uint32_t d_rope_;
  std::vector<float> cos_, sin_;
};

// Pointers passed to the functions below may be null if `count` is 0. Nothing is written then.

// Rotates the last d_rope values of `count` f32 rows in place, for example of queries before they
// are rounded for the wire. Leaves the other values unchanged. An identity rotation or style kNone
// changes nothing.
//   rows     f32 [count] rows of `width` values, `stride` values apart
void RotateBandsF32(const RopeRotation& rotation, float* rows, uint32_t count, uint32_t width,
                    uint32_t stride) noexcept;

// Copies rows of either dtype and rotates their bf16 bands, the last d_rope x 2 bytes, in the same
// pass. The bytes before the bands are copied bit for bit.
//   in    [count] rows of row_bytes, in_stride_bytes apart; any address
//   out   [count][row_bytes], contiguous, any address; must not overlap `in`
// Cost: reads and writes each row once and should run at memory speed.
void CopyRotatedRows(const RopeRotation& rotation, const std::byte* in, size_t in_stride_bytes,
                     std::byte* out, uint32_t count, uint32_t row_bytes) noexcept;

// Copies and rotates rows in the same way, into the blocks of a paged cache. Writes the first
// rows.count rows of `to` and nothing else. They must fit its table, and the blocks must fit its
// layer (CKV_CHECK).
//   rows  [count] rows of row_bytes; any address and stride; must not overlap the layer
void ScatterRotatedRows(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                        const PagedPlace& to) noexcept;

// Rotates the bf16 band of rows of either dtype (the last d_rope x 2 of row_bytes) in place. Leaves
// the other bytes unchanged. An identity rotation or style kNone changes nothing.
//   rows     [count] rows of row_bytes, stride_bytes apart; any address
// Rounds to nearest even once: errs by <= 2^-8 of each pair's length. Against canonical f64 values
// it errs by <= 3 x 2^-8, which includes their own rounding. Errors grow with the square root of
// the number of rotations, so rotate canonical rows, never rows that are already rotated.
void RotateBandsFp8DsMla(const RopeRotation& rotation, std::byte* rows, uint32_t count,
                         uint32_t row_bytes, uint32_t stride_bytes) noexcept;

}  // namespace ckv
