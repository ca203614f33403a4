#include "attention/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "attention/bf16.h"
#include "proto/geometry.h"
#include "proto/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/merge.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file again for every target.
#include "attention/simd_math.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// sum += weight * o (first: sum = weight * o); `sum` has room for the padding of its last vector.
void AddWeighted(const std::byte* o, PartialDtype dtype, float weight_value, uint32_t d_v,
                 bool first, float* sum) {
  const hn::CappedTag<float, 16> d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto weight = hn::Set(d, weight_value);
  const size_t value_bytes = dtype == PartialDtype::kF32 ? 4 : 2;
  for (uint32_t c = 0; c < d_v; c += lanes) {
    alignas(64) std::byte tail[64] = {};
    const std::byte* at = o + c * value_bytes;
    if (c + lanes > d_v) {
      std::memcpy(tail, at, (d_v - c) * value_bytes);
      at = tail;
    }
    const auto value = dtype == PartialDtype::kF32
                           ? hn::LoadU(d, reinterpret_cast<const float*>(at))
                           : LoadBf16(d, at);
    hn::Store(first ? hn::Mul(value, weight) : hn::MulAdd(value, weight, hn::Load(d, sum + c)), d,
              sum + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {
namespace {

HWY_EXPORT(AddWeighted);

size_t ValueBytes(PartialDtype dtype) { return dtype == PartialDtype::kF32 ? 4 : 2; }

bool IsEmpty(const ConstPartialView& part, uint32_t row) {
  const float m = part.m[row];
  // !(m < inf) is true for NaN and +inf.
  return part.l[row] == 0 || m == kEmptyM || !(m < std::numeric_limits<float>::infinity());
}

const std::byte* RowOf(const ConstPartialView& part, uint32_t row, uint32_t d_v) {
  return static_cast<const std::byte*>(part.o) + size_t{row} * d_v * ValueBytes(part.dtype);
}

// One part's o to another place and dtype; exact unless f32 is rounded to bf16.
void CopyRow(const std::byte* from, PartialDtype from_dtype, uint32_t d_v, PartialDtype to_dtype,
             std::byte* to) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, d_v * ValueBytes(to_dtype));
  } else if (to_dtype == PartialDtype::kF32) {
    FloatsFromBf16(reinterpret_cast<const uint16_t*>(from), reinterpret_cast<float*>(to), d_v);
  } else {
    Bf16FromFloats(reinterpret_cast<const float*>(from), reinterpret_cast<uint16_t*>(to), d_v);
  }
}

void MergeRow(std::span<const ConstPartialView> parts, uint32_t row, uint32_t d_v,
              const PartialView& out) {
  std::byte* o = static_cast<std::byte*>(out.o) + size_t{row} * d_v * ValueBytes(out.dtype);
  float m = kEmptyM;
  uint32_t count = 0;
  const ConstPartialView* only = nullptr;
  for (const ConstPartialView& part : parts) {
    if (IsEmpty(part, row)) continue;
    m = std::max(m, part.m[row]);
    only = &part;
    ++count;
  }
  if (count == 0) {
    std::memset(o, 0, d_v * ValueBytes(out.dtype));
    out.m[row] = kEmptyM;
    out.l[row] = 0;
    return;
  }
  if (count == 1) {
    CopyRow(RowOf(*only, row, d_v), only->dtype, d_v, out.dtype, o);
    out.m[row] = only->m[row];
    out.l[row] = only->l[row];
    return;
  }
  const auto weight = [&](const ConstPartialView& part) {
    return part.l[row] * std::exp(part.m[row] - m);
  };
  float l = 0;
  for (const ConstPartialView& part : parts) {
    if (!IsEmpty(part, row)) l += weight(part);
  }
  alignas(64) std::array<float, kRowWidthMax> sum;
  bool first = true;
  for (const ConstPartialView& part : parts) {
    if (IsEmpty(part, row)) continue;
    // A weight that underflowed to 0 is not multiplied either: 0 x NaN and 0 x inf are NaN.
    const float share = weight(part) / l;
    if (share == 0) continue;
    HWY_DYNAMIC_DISPATCH(AddWeighted)
    (RowOf(part, row, d_v), part.dtype, share, d_v, first, sum.data());
    first = false;
  }
  CopyRow(reinterpret_cast<const std::byte*>(sum.data()), PartialDtype::kF32, d_v, out.dtype, o);
  out.m[row] = m;
  out.l[row] = l;
}

}  // namespace

void MergePartials(std::span<const ConstPartialView> parts, uint32_t row_count, uint32_t d_v,
                   const PartialView& out) noexcept {
  CKV_CHECK(parts.size() <= kMergePartCountMax && d_v <= kRowWidthMax);
  for (uint32_t row = 0; row < row_count; ++row) MergeRow(parts, row, d_v, out);
}

}  // namespace ckv
#endif  // HWY_ONCE
