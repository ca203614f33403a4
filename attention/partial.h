// The one convention for a partial attention result, and the views that kernels take.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "proto/geometry.h"
#include "proto/selection.h"

namespace ckv {

// The value of m for a query row that saw no key; then o = 0 and l = 0. Logs are natural
// everywhere. Peers that mark an empty row with lse = +inf (FlashMLA) or use base-2 logs are
// converted where their bytes come in.
inline constexpr float kEmptyM = -std::numeric_limits<float>::infinity();

enum class PartialDtype : uint8_t {
  kBf16 = 1,  // o in bf16; m and l are f32 in both
  kF32 = 2,
};

// The facts about a geometry that a kernel needs. Constant over one call.
struct AttentionShape {
  uint32_t d_qk = 0;  // multiple of 2, at most kRowWidthMax
  uint32_t d_v = 0;   // at most d_qk
  uint32_t d_rope = 0;
  RowDtype row_dtype = RowDtype::kBf16;
  float softmax_scale = 0;  // natural-log softmax of (q . row) * softmax_scale

  static AttentionShape Of(const Geometry& geometry) {
    return {geometry.d_qk, geometry.d_v, geometry.d_rope, geometry.dtype, geometry.softmax_scale};
  }
};

// Query rows: bf16 [count, d_qk], token-major (token x heads + head). Borrowed, at any 2-byte
// aligned address, so a kernel reads them where the fabric put them.
struct QueryView {
  const uint16_t* data = nullptr;
  uint32_t count = 0;
  uint32_t stride = 0;  // values from one row to the next, >= d_qk
};

// cKV rows of one layer of one chunk: [count] rows of the shape's dtype. Borrowed: the caller holds
// the pin that keeps them alive.
struct RowView {
  const std::byte* data = nullptr;
  uint32_t count = 0;
  uint32_t stride_bytes = 0;  // >= the row's bytes
};

// The place of a partial: o [rows, d_v] of `dtype`, m f32 [rows], l f32 [rows].
//   o = sum_j p_j v_j / l     m = max_j logit_j     l = sum_j exp(logit_j - m)
// m includes the softmax scale. Borrowed; 4-byte aligned.
struct PartialView {
  void* o = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  PartialDtype dtype = PartialDtype::kF32;
};
struct ConstPartialView {
  const void* o = nullptr;
  const float* m = nullptr;
  const float* l = nullptr;
  PartialDtype dtype = PartialDtype::kF32;

  ConstPartialView() = default;
  ConstPartialView(const void* o_in, const float* m_in, const float* l_in, PartialDtype dtype_in)
      : o(o_in), m(m_in), l(l_in), dtype(dtype_in) {}
  ConstPartialView(const PartialView& view)  // NOLINT(google-explicit-constructor): T* to const T*
      : o(view.o), m(view.m), l(view.l), dtype(view.dtype) {}
};

}  // namespace ckv
