#include "attention/query/query_values.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "attention/backend.h"
#include "attention/bf16.h"

namespace ckv {
namespace {

// The greatest magnitude, as bits: those of bf16 rise with it, infinity and NaN included. No branch
// in the loop, so that it is vectorised: 8 values an instruction without any extension.
uint16_t MaxMagnitude(const uint16_t* values, size_t count) {
  int16_t most = 0;
  for (size_t i = 0; i < count; ++i)
    most = std::max(most, static_cast<int16_t>(values[i] & 0x7fffu));
  return static_cast<uint16_t>(most);
}

absl::Status Refuse(const QueryView& q, uint32_t row, uint32_t width, uint16_t limit) {
  const uint16_t* const values = q.data + size_t{row} * q.stride;
  uint32_t column = 0;
  while (column + 1 < width && (values[column] & 0x7fffu) <= limit) ++column;
  return absl::InvalidArgumentError(absl::StrFormat(
      "query row %d: value %d is %g: values must be finite and at most %g, or products overflow",
      row, column, FloatFromBf16(values[column]), kQueryMagnitudeMax));
}

}  // namespace

absl::Status CheckQueryValues(const QueryView& q, uint32_t width, float slack) {
  if (q.memory == MemoryKind::kDevice) return absl::OkStatus();
  if (q.after != nullptr && !q.after->Ready()) return absl::OkStatus();
  const uint16_t limit = Bf16FromFloat(kQueryMagnitudeMax * slack);
  if (q.stride == width && MaxMagnitude(q.data, size_t{q.count} * width) <= limit)
    return absl::OkStatus();
  for (uint32_t row = 0; row < q.count; ++row) {
    if (MaxMagnitude(q.data + size_t{row} * q.stride, width) > limit)
      return Refuse(q, row, width, limit);
  }
  return absl::OkStatus();
}

}  // namespace ckv
