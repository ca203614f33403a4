// The only convention for a partial attention result, and the views that kernels take.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "attention/paged/row_blocks.h"
#include "proto/geometry.h"
#include "proto/selection.h"

namespace ckv {

// The value of m for a query row that saw no key; then o = 0 and l = 0. All logs are natural.
// Results of peers that mark an empty row with lse = +inf (FlashMLA), or use base-2 logs, are
// converted on arrival.
inline constexpr float kEmptyM = -std::numeric_limits<float>::infinity();

enum class PartialDtype : uint8_t {
  kBf16 = 1,  // o in bf16; m and l are f32 in both
  kF32 = 2,
};

// The properties of a geometry that a kernel needs. Constant during a call.
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

// The kind of memory that a view refers to.
enum class MemoryKind : uint8_t {
  kHost = 0,    // memory of this process
  kPinned = 1,  // page-locked host memory, which a device can read and write directly
  kDevice = 2,  // memory of a device; only operations of its backend access it
};

// Returns "host", "pinned" or "device".
constexpr std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    default:
      return "device";
  }
}

class ComputeStream;  // attention/backend.h

// Every view below names the kind of its memory. The memory may be accessed once the work queued so
// far on the stream `after` is done, or immediately if `after` is null. Operations of a Backend
// (attention/backend.h) honour both fields. The functions in this folder take ready host memory,
// which is the default.

// cKV rows of one layer of a chunk, or of a sequence in an engine's cache: [count] rows of the
// shape's dtype. Borrowed: the caller holds the pin that keeps them valid.
struct RowView {
  const std::byte* data = nullptr;  // the first row; if paged, the first row of block 0
  uint32_t count = 0;
  uint32_t stride_bytes = 0;  // from one row to the next, within a block; >= the row's bytes
  MemoryKind memory = MemoryKind::kHost;
  ComputeStream* after = nullptr;
  RowBlocks blocks = {};

  // Returns the rows [begin, begin + row_count) of rows that are not paged.
  RowView Rows(uint32_t begin, uint32_t row_count) const {
    RowView rows = *this;
    rows.data += size_t{begin} * stride_bytes;
    rows.count = row_count;
    return rows;
  }
  bool paged() const { return blocks.table != nullptr; }
  // Returns the address of row i.
  const std::byte* Row(uint32_t i) const {
    if (!paged()) return data + size_t{i} * stride_bytes;
    const size_t block = blocks.table[i / blocks.block_rows];
    return data + block * blocks.block_stride_bytes + size_t{i % blocks.block_rows} * stride_bytes;
  }
};

// Query rows: bf16 [count, d_qk], token-major (token x heads + head). Borrowed, at any 2-byte
// aligned address, so that a kernel reads them where the fabric wrote them.
struct QueryView {
  const uint16_t* data = nullptr;
  uint32_t count = 0;
  uint32_t stride = 0;  // values from one row to the next, >= d_qk
  MemoryKind memory = MemoryKind::kHost;
  ComputeStream* after = nullptr;

  // Returns the rows [begin, begin + row_count).
  QueryView Rows(uint32_t begin, uint32_t row_count) const {
    QueryView rows = *this;
    rows.data += size_t{begin} * stride;
    rows.count = row_count;
    return rows;
  }
  // Returns the same memory as rows of bytes.
  RowView Bytes() const {
    return {reinterpret_cast<const std::byte*>(data), count, stride * 2, memory, after};
  }
};

// A destination for contiguous rows.
struct RowPlace {
  std::byte* data = nullptr;
  MemoryKind memory = MemoryKind::kHost;
  ComputeStream* after = nullptr;
};

// A destination for rows in one layer of a paged cache. Row r is row r % block_rows of the block
// table[r / block_rows].
struct PagedPlace {
  std::span<std::byte> layer;       // [blocks][block_rows][row_bytes]
  std::span<const uint32_t> table;  // always host memory, whatever `memory` is
  uint64_t row_begin = 0;           // the first row to write; need not begin a block
  uint32_t block_rows = 0;
  MemoryKind memory = MemoryKind::kHost;
  ComputeStream* after = nullptr;
};

// Returns the size of one value of a partial's o, in bytes.
constexpr uint32_t ValueBytes(PartialDtype dtype) { return dtype == PartialDtype::kF32 ? 4 : 2; }

// The buffers of a partial: o [rows, d_v] of `dtype`, m f32 [rows], l f32 [rows].
//   o = sum_j p_j v_j / l     m = max_j logit_j     l = sum_j exp(logit_j - m)
// The logits, and so m, include the softmax scale. Borrowed; 4-byte aligned.
struct PartialView {
  void* o = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  PartialDtype dtype = PartialDtype::kF32;
  MemoryKind memory = MemoryKind::kHost;
  ComputeStream* after = nullptr;

  // Returns the rows from `row` on.
  PartialView From(size_t row, uint32_t d_v) const {
    PartialView rows = *this;
    rows.o = static_cast<std::byte*>(o) + row * d_v * ValueBytes(dtype);
    rows.m += row;
    rows.l += row;
    return rows;
  }
};
struct ConstPartialView {
  const void* o = nullptr;
  const float* m = nullptr;
  const float* l = nullptr;
  PartialDtype dtype = PartialDtype::kF32;
  MemoryKind memory = MemoryKind::kHost;
  ComputeStream* after = nullptr;

  ConstPartialView() = default;
  ConstPartialView(const void* o_in, const float* m_in, const float* l_in, PartialDtype dtype_in,
                   MemoryKind memory_in = MemoryKind::kHost)
      : o(o_in), m(m_in), l(l_in), dtype(dtype_in), memory(memory_in) {}
  ConstPartialView(const PartialView& view)  // NOLINT(google-explicit-constructor): T* to const T*
      : o(view.o),
        m(view.m),
        l(view.l),
        dtype(view.dtype),
        memory(view.memory),
        after(view.after) {}
};

}  // namespace ckv
