// Merges partials of query rows. For each row, MergePartials works in two passes:
//   TotalsOf  reads m and l of all parts: the largest m, and the sum of l scaled to it
//   SumParts  adds o of each part by its weight, up to 16 parts at a time, with the vector kernel
// A row with one part is copied, and a row with none is written as empty. MergeTree instead joins
// parts in pairs, as their levels prescribe: WaitingRows keeps the nodes that wait for a right
// neighbour. The kernel is compiled for every target.

#include "attention/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "attention/bf16.h"
#include "proto/base/status.h"
#include "proto/geometry.h"

#ifndef CKV_ATTENTION_MERGE_ONCE_
#define CKV_ATTENTION_MERGE_ONCE_
namespace ckv {

// One part's row and its share of the result.
struct WeightedRow {
  const std::byte* o;
  PartialDtype dtype;
  float weight;
};

}  // namespace ckv
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/merge.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file again for every target.
#include "attention/simd_math.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// Lanes(d) values of a part from column `c` on.
template <class D>
HWY_INLINE hn::Vec<D> LoadValues(D d, const WeightedRow& part, uint32_t c) {
  if (part.dtype == PartialDtype::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(part.o) + c);
  }
  return LoadBf16(d, part.o + size_t{c} * 2);
}

// Sums Lanes(d) columns of every part, in the order of the parts, and adds the old sum unless
// `first`. The sum stays in a register. One vector of each part at a time, because a core loads
// eight streams faster in turns of a cache line than of several.
template <class D>
HWY_INLINE void AddColumns(D d, std::span<const WeightedRow> parts, uint32_t c, bool first,
                           float* sum) {
  hn::Vec<D> total = first ? hn::Zero(d) : hn::LoadU(d, sum + c);
  for (const WeightedRow& part : parts) {
    const auto weight = hn::Set(d, part.weight);
    const auto value = LoadValues(d, part, c);
    // A product for the first part, not 0 + product: that would turn a -0 into a +0.
    const bool starts = first && &part == parts.data();
    total = starts ? hn::Mul(value, weight) : hn::MulAdd(value, weight, total);
  }
  hn::StoreU(total, d, sum + c);
}

// Computes sum[0, d_v) = sum over `parts` of weight * o, added to the old sum unless `first`.
void AddWeighted(std::span<const WeightedRow> parts, uint32_t d_v, bool first, float* sum) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> d1;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  uint32_t c = 0;
  for (; c + lanes <= d_v; c += lanes) AddColumns(d, parts, c, first, sum);
  for (; c < d_v; ++c) AddColumns(d1, parts, c, first, sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {
namespace {

HWY_EXPORT(AddWeighted);

// The most parts that one pass over a row's columns takes: as many streams as a core prefetches.
constexpr size_t kGroupMax = 16;

bool IsEmpty(const ConstPartialView& part, uint32_t row) {
  const float m = part.m[row];
  // !(m < inf) is true for NaN and +inf.
  return part.l[row] == 0 || m == kEmptyM || !(m < std::numeric_limits<float>::infinity());
}

const std::byte* RowOf(const ConstPartialView& part, uint32_t row, uint32_t d_v) {
  return static_cast<const std::byte*>(part.o) + size_t{row} * d_v * ValueBytes(part.dtype);
}

// Writes one part's o to another place and dtype; exact unless f32 is rounded to bf16.
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

// The sum over a row's parts, before their values are read.
struct RowTotals {
  float m = kEmptyM;
  float l = 0;
  uint32_t count = 0;  // parts that are not empty
  const ConstPartialView* last = nullptr;
};

float WeightOf(const ConstPartialView& part, uint32_t row, float m) {
  return part.l[row] * std::exp(part.m[row] - m);
}

// `weights` gets the weights of the first kGroupMax parts, so that most rows take each exponential
// once.
RowTotals TotalsOf(std::span<const ConstPartialView> parts, uint32_t row,
                   std::span<float, kGroupMax> weights) {
  RowTotals totals;
  for (const ConstPartialView& part : parts) {
    if (IsEmpty(part, row)) continue;
    totals.m = std::max(totals.m, part.m[row]);
    totals.last = &part;
    ++totals.count;
  }
  if (totals.count < 2) return totals;
  uint32_t live = 0;
  for (const ConstPartialView& part : parts) {
    if (IsEmpty(part, row)) continue;
    const float weight = WeightOf(part, row, totals.m);
    totals.l += weight;
    if (live < kGroupMax) weights[live++] = weight;
  }
  return totals;
}

void WriteEmptyRow(uint32_t row, uint32_t d_v, const PartialView& out, std::byte* o) {
  std::memset(o, 0, d_v * ValueBytes(out.dtype));
  out.m[row] = kEmptyM;
  out.l[row] = 0;
}

// Computes the sum of the parts' weighted values, kGroupMax parts at a time.
void SumParts(std::span<const ConstPartialView> parts, uint32_t row, uint32_t d_v,
              const RowTotals& totals, std::span<const float, kGroupMax> weights, float* sum) {
  std::array<WeightedRow, kGroupMax> group;
  uint32_t grouped = 0, live = 0;
  bool first = true;
  const auto flush = [&] {
    if (grouped == 0) return;
    HWY_DYNAMIC_DISPATCH(AddWeighted)(std::span(group).first(grouped), d_v, first, sum);
    first = false;
    grouped = 0;
  };
  for (const ConstPartialView& part : parts) {
    if (IsEmpty(part, row)) continue;
    const float weight = live < kGroupMax ? weights[live] : WeightOf(part, row, totals.m);
    ++live;
    // A weight that underflowed to 0 is not multiplied either: 0 x NaN and 0 x inf are NaN.
    const float share = weight / totals.l;
    if (share == 0) continue;
    group[grouped++] = {RowOf(part, row, d_v), part.dtype, share};
    if (grouped == kGroupMax) flush();
  }
  flush();
  // Every share underflowed, because the sum of l overflowed. There is no answer, so give one that
  // shows it.
  if (first) std::fill_n(sum, d_v, std::numeric_limits<float>::quiet_NaN());
}

void MergeRow(std::span<const ConstPartialView> parts, uint32_t row, uint32_t d_v,
              const PartialView& out) {
  std::byte* o = static_cast<std::byte*>(out.o) + size_t{row} * d_v * ValueBytes(out.dtype);
  std::array<float, kGroupMax> weights;
  const RowTotals totals = TotalsOf(parts, row, weights);
  if (totals.count == 0) return WriteEmptyRow(row, d_v, out, o);
  if (totals.count == 1) {
    const ConstPartialView& only = *totals.last;
    CopyRow(RowOf(only, row, d_v), only.dtype, d_v, out.dtype, o);
    out.m[row] = only.m[row];
    out.l[row] = only.l[row];
    return;
  }
  if (out.dtype == PartialDtype::kF32) {
    SumParts(parts, row, d_v, totals, weights, reinterpret_cast<float*>(o));
  } else {
    std::array<float, kRowWidthMax> sum;
    SumParts(parts, row, d_v, totals, weights, sum.data());
    CopyRow(reinterpret_cast<const std::byte*>(sum.data()), PartialDtype::kF32, d_v, out.dtype, o);
  }
  out.m[row] = totals.m;
  out.l[row] = totals.l;
}

// One node of a row's tree that waits for its right neighbour: a part's row, or a sum.
struct WaitingRow {
  float m;
  float l;
  const std::byte* o;
  PartialDtype dtype;
  uint8_t level;  // joins it with the node before it
};

// Joins the last two of a row's waiting nodes into `sum`, as MergeRow would. `sum` may be the place
// of the left one.
WaitingRow Join(const WaitingRow& left, const WaitingRow& right, uint32_t d_v, float* sum) {
  const float m = std::max(left.m, right.m);
  const float left_weight = left.l * std::exp(left.m - m);
  const float right_weight = right.l * std::exp(right.m - m);
  const float l = left_weight + right_weight;
  std::array<WeightedRow, 2> weighted;
  size_t count = 0;
  // As in SumParts: a share of 0 is not multiplied.
  if (const float share = left_weight / l; share != 0)
    weighted[count++] = {left.o, left.dtype, share};
  if (const float share = right_weight / l; share != 0)
    weighted[count++] = {right.o, right.dtype, share};
  if (count == 0) {
    std::fill_n(sum, d_v, std::numeric_limits<float>::quiet_NaN());
  } else {
    HWY_DYNAMIC_DISPATCH(AddWeighted)(std::span(weighted).first(count), d_v, true, sum);
  }
  return {m, l, reinterpret_cast<const std::byte*>(sum), PartialDtype::kF32, left.level};
}

// The waiting nodes of one row. Their levels decrease, so there are at most as many as levels, plus
// one before the first.
class WaitingRows {
 public:
  explicit WaitingRows(uint32_t d_v) : d_v_(d_v) {}

  void Clear() { count_ = 0; }
  // Joins the nodes at or below `level`, because no later part can be between them. Then adds the
  // part.
  void Add(const ConstPartialView& part, uint32_t row, uint8_t level) {
    while (count_ > 1 && rows_[count_ - 1].level <= level) JoinLast(sums_[count_ - 2].data());
    rows_[count_++] = {part.m[row], part.l[row], RowOf(part, row, d_v_), part.dtype, level};
  }
  // Joins everything. The last sum is written straight to `o` if it is f32.
  void Finish(uint32_t row, const PartialView& out) {
    std::byte* const o =
        static_cast<std::byte*>(out.o) + size_t{row} * d_v_ * ValueBytes(out.dtype);
    if (count_ == 0) return WriteEmptyRow(row, d_v_, out, o);
    while (count_ > 2) JoinLast(sums_[count_ - 2].data());
    if (count_ == 2)
      JoinLast(out.dtype == PartialDtype::kF32 ? reinterpret_cast<float*>(o) : sums_[0].data());
    const WaitingRow& last = rows_[0];
    if (last.o != o) CopyRow(last.o, last.dtype, d_v_, out.dtype, o);
    out.m[row] = last.m;
    out.l[row] = last.l;
  }

 private:
  static constexpr size_t kWaitingMax = kTreeLevelMax + 2;

  void JoinLast(float* sum) {
    rows_[count_ - 2] = Join(rows_[count_ - 2], rows_[count_ - 1], d_v_, sum);
    --count_;
  }

  const uint32_t d_v_;
  size_t count_ = 0;
  std::array<WaitingRow, kWaitingMax> rows_;
  // The sum for entry i of rows_. Only as many are touched as there are waiting nodes.
  std::array<std::array<float, kRowWidthMax>, kWaitingMax> sums_;
};

}  // namespace

void MergePartials(std::span<const ConstPartialView> parts, uint32_t row_count, uint32_t d_v,
                   const PartialView& out) noexcept {
  CKV_CHECK(parts.size() <= kMergePartCountMax && d_v <= kRowWidthMax);
  for (uint32_t row = 0; row < row_count; ++row) MergeRow(parts, row, d_v, out);
}

void MergeTree(std::span<const ConstPartialView> parts, std::span<const uint8_t> levels,
               uint32_t row_count, uint32_t d_v, const PartialView& out) noexcept {
  CKV_CHECK(parts.size() <= kMergePartCountMax && d_v <= kRowWidthMax &&
            levels.size() == parts.size());
  WaitingRows waiting(d_v);
  for (uint32_t row = 0; row < row_count; ++row) {
    waiting.Clear();
    uint8_t level = 0;  // the highest since the last part that is not empty
    for (size_t i = 0; i < parts.size(); ++i) {
      level = std::max(level, levels[i]);
      if (IsEmpty(parts[i], row)) continue;
      waiting.Add(parts[i], row, level);
      level = 0;
    }
    waiting.Finish(row, out);
  }
}

}  // namespace ckv
#endif  // HWY_ONCE
