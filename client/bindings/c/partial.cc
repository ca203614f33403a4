// Arithmetic on partials: what the ABI has without a requester.
//
// Each function checks all its arguments before it writes the first value. They work on the
// caller's thread, and keep no state. FormOf has the units of a log-sum-exp, and its mark of an
// empty row, for each form.

#include "attention/partial.h"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "client/bindings/c/ckv_partial.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"
#include "proto/geometry.h"

namespace ckv::c {
namespace {

static_assert(std::has_unique_object_representations_v<ckv_partial>);

// FlashInfer's math::inf, and a bound above it and the log of the keys that it counts.
constexpr double kFlashInferEmpty = -50000;
constexpr double kFlashInferEmptyMax = -49000;

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

// The memory of the answer, for the search of overlaps.
struct Answer {
  PartialView view;
  uint32_t row_count;
  uint32_t d_v;

  bool Overlaps(const void* memory, size_t bytes) const {
    const size_t row_bytes = size_t{row_count} * sizeof(float);
    return Overlap(view.o, row_bytes * d_v, memory, bytes) ||
           Overlap(view.m, row_bytes, memory, bytes) || Overlap(view.l, row_bytes, memory, bytes);
  }
};

absl::Status TakePartial(const ckv_partial& part, const Answer& answer, ConstPartialView& to) {
  if (part.o == nullptr || part.m == nullptr || part.l == nullptr)
    return Missing("ckv_partial: o, m or l");
  if (part.reserved != 0) return absl::InvalidArgumentError("ckv_partial: reserved is not 0");
  PartialDtype dtype = PartialDtype::kF32;
  CKV_RETURN_IF_ERROR(TakeWire(part.dtype, dtype));
  const size_t rows = answer.row_count;
  if (answer.Overlaps(part.o, rows * answer.d_v * ValueBytes(dtype)) ||
      answer.Overlaps(part.m, rows * sizeof(float)) ||
      answer.Overlaps(part.l, rows * sizeof(float))) {
    return absl::InvalidArgumentError("merge: the answer overlaps a part");
  }
  to = {part.o, part.m, part.l, dtype};
  return absl::OkStatus();
}

absl::Status Merge(const ckv_partial* parts, uint32_t part_count, const Answer& answer) {
  if (part_count == 0 || part_count > kMergePartCountMax)
    return absl::InvalidArgumentError(absl::StrFormat("merge: %d parts", part_count));
  if (answer.d_v == 0 || answer.d_v > kRowWidthMax)
    return absl::InvalidArgumentError(absl::StrFormat("merge: d_v %d", answer.d_v));
  if (answer.row_count == 0) return absl::OkStatus();
  if (answer.view.o == nullptr || answer.view.m == nullptr || answer.view.l == nullptr)
    return Missing("o, m or l");
  absl::InlinedVector<ConstPartialView, 8> views;
  views.reserve(part_count);
  CKV_RETURN_IF_ERROR(ForEachStruct("ckv_partial", parts, part_count, [&](const ckv_partial& part) {
    return TakePartial(part, answer, views.emplace_back());
  }));
  MergePartials(views, answer.row_count, answer.d_v, answer.view);
  return absl::OkStatus();
}

struct LseForm {
  double per_nat;  // its units in a natural log
  float empty;     // its mark of an empty row
  double empty_max;
};

absl::StatusOr<LseForm> FormOf(uint32_t form) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  switch (form) {
    case CKV_LSE_NATURAL:
      return LseForm{1, -kInf, kNever};
    case CKV_LSE_BASE2:
      return LseForm{std::numbers::log2e, -kInf, kNever};
    case CKV_LSE_FLASHMLA:
      return LseForm{1, kInf, kNever};
    case CKV_LSE_FLASHINFER:
      return LseForm{std::numbers::log2e, static_cast<float>(kFlashInferEmpty),
                     kFlashInferEmptyMax};
    default:
      return absl::InvalidArgumentError(absl::StrFormat("%d is no form of a log-sum-exp", form));
  }
}

absl::Status LseFromPartial(uint32_t form_number, uint32_t row_count, const float* m,
                            const float* l, float* lse) {
  CKV_ASSIGN_OR_RETURN(const LseForm form, FormOf(form_number));
  if (row_count != 0 && (m == nullptr || l == nullptr || lse == nullptr))
    return Missing("m, l or lse");
  for (uint32_t i = 0; i < row_count; ++i) {
    if (!std::isnan(m[i]) && l[i] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("row %d: m is %f and l is %f", i, m[i], l[i]));
  }
  for (uint32_t i = 0; i < row_count; ++i) {
    const bool empty = l[i] == 0 || std::isinf(m[i]);
    lse[i] = empty ? form.empty
                   : static_cast<float>((double{m[i]} + std::log(double{l[i]})) * form.per_nat);
  }
  return absl::OkStatus();
}

absl::Status PartialFromLse(uint32_t form_number, uint32_t row_count, const float* lse, float* m,
                            float* l) {
  CKV_ASSIGN_OR_RETURN(const LseForm form, FormOf(form_number));
  if (row_count != 0 && (m == nullptr || l == nullptr || lse == nullptr))
    return Missing("lse, m or l");
  for (uint32_t i = 0; i < row_count; ++i) {
    if (std::isnan(lse[i]))
      return absl::InvalidArgumentError(absl::StrFormat("row %d: lse is NaN", i));
  }
  for (uint32_t i = 0; i < row_count; ++i) {
    const double value = lse[i];
    const bool empty = std::isinf(value) || value <= form.empty_max;
    m[i] = empty ? kEmptyM : static_cast<float>(value / form.per_nat);
    l[i] = empty ? 0.0f : 1.0f;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_merge(const ckv_partial* parts, uint32_t part_count, uint32_t row_count,
                                uint32_t d_v, float* o, float* m, float* l) {
  return ckv::c::Guard({}, [&] {
    return ckv::c::Merge(parts, part_count, {{o, m, l, ckv::PartialDtype::kF32}, row_count, d_v});
  });
}

extern "C" ckv_status ckv_lse_from_partial(uint32_t form, uint32_t row_count, const float* m,
                                           const float* l, float* lse) {
  return ckv::c::Guard({}, [&] { return ckv::c::LseFromPartial(form, row_count, m, l, lse); });
}

extern "C" ckv_status ckv_partial_from_lse(uint32_t form, uint32_t row_count, const float* lse,
                                           float* m, float* l) {
  return ckv::c::Guard({}, [&] { return ckv::c::PartialFromLse(form, row_count, lse, m, l); });
}
