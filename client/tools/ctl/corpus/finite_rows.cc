#include "client/tools/ctl/corpus/finite_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/query/query_values.h"
#include "client/tools/ctl/output.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// Counts the values of `bytes`, at any address, whose bits under `mask` are at least `limit`.
template <typename Bits>
void Scan(std::span<const std::byte> bytes, Bits mask, Bits limit, uint64_t index,
          NonFinite& found) {
  const size_t count = bytes.size() / sizeof(Bits);
  const auto at = [&](size_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
    return (bits & mask) >= limit;
  };
  uint64_t sum = 0;  // no branch in here: a corpus is scanned at the speed of memory
  for (size_t i = 0; i < count; ++i) sum += at(i);
  if (sum == 0) return;
  if (found.count == 0) {
    size_t first = 0;
    while (!at(first)) ++first;
    found.first = index + first;
  }
  found.count += sum;
}

// Magnitudes, as bits. Those above kRowMagnitudeMax, infinity and NaN are all at least the limit.
constexpr uint16_t kBf16Magnitude = 0x7fff;
constexpr uint16_t kBf16Limit = Bf16FromFloat(kRowMagnitudeMax) + 1;
constexpr uint32_t kF32Magnitude = 0x7fffffff;
// A value is at most 448 < 2^9 times its scale.
constexpr uint32_t kScaleLimit = std::bit_cast<uint32_t>(kRowMagnitudeMax / 512) + 1;
constexpr uint8_t kE4m3Nan = 0x7f;  // either sign; there is no infinity

uint64_t ValuesPerRow(const Geometry& geometry) {
  if (geometry.dtype == RowDtype::kBf16) return geometry.d_qk;
  return geometry.d_v + geometry.d_v / kFp8ScaleGroup + geometry.d_rope;
}

uint64_t KeyValues(const IndexShape& index) {
  return index.dtype == IndexDtype::kBf16 ? index.dim : index.dim + 1;
}

}  // namespace

NonFinite FindNonFinite(const Geometry& geometry, std::span<const std::byte> rows) {
  NonFinite found;
  if (geometry.dtype == RowDtype::kBf16) {
    Scan<uint16_t>(rows, kBf16Magnitude, kBf16Limit, 0, found);
    return found;
  }
  const size_t latent = geometry.d_v, scales = geometry.d_v / kFp8ScaleGroup;
  const size_t row_bytes = geometry.row_bytes();
  uint64_t index = 0;
  for (size_t at = 0; at + row_bytes <= rows.size(); at += row_bytes) {
    const auto row = rows.subspan(at, row_bytes);
    Scan<uint8_t>(row.first(latent), kE4m3Nan, kE4m3Nan, index, found);
    Scan<uint32_t>(row.subspan(latent, scales * sizeof(float)), kF32Magnitude, kScaleLimit,
                   index + latent, found);
    Scan<uint16_t>(row.subspan(latent + scales * sizeof(float)), kBf16Magnitude, kBf16Limit,
                   index + latent + scales, found);
    index += ValuesPerRow(geometry);
  }
  return found;
}

NonFinite FindNonFiniteKeys(const IndexShape& index, std::span<const std::byte> keys) {
  NonFinite found;
  if (index.dtype == IndexDtype::kBf16) {
    Scan<uint16_t>(keys, kBf16Magnitude, kBf16Limit, 0, found);
    return found;
  }
  uint64_t first = 0;
  for (size_t at = 0; at + index.key_bytes() <= keys.size(); at += index.key_bytes()) {
    const auto key = keys.subspan(at, index.key_bytes());
    if (index.dtype == IndexDtype::kFp8)
      Scan<uint8_t>(key.first(index.dim), kE4m3Nan, kE4m3Nan, first, found);
    Scan<uint32_t>(key.subspan(index.dim), kF32Magnitude, kScaleLimit, first + index.dim, found);
    first += KeyValues(index);
  }
  return found;
}

FiniteCheck::FiniteCheck(ChunkSource& source, bool reject)
    : source_(source), reject_(reject), seen_(source.chunks().size()) {
  geometry_ = source.geometry();
  chunks_ = source.chunks();
}

absl::StatusOr<SourceChunk> FiniteCheck::Read(uint32_t ordinal) {
  CKV_ASSIGN_OR_RETURN(SourceChunk chunk, source_.Read(ordinal));
  if (seen_.at(ordinal)) return chunk;
  seen_[ordinal] = true;
  for (uint32_t t = 0; t < geometry_.tensor_count(); ++t) {
    const bool is_rows = t < geometry_.layers;
    const NonFinite found = is_rows ? FindNonFinite(geometry_, chunk.rows(t))
                                    : FindNonFiniteKeys(*geometry_.index, chunk.rows(t));
    if (found.count == 0) continue;
    if (count_ == 0) {
      const uint64_t width = is_rows ? ValuesPerRow(geometry_) : KeyValues(*geometry_.index);
      first_ =
          absl::StrFormat("%s, position %d, value %d", geometry_.TensorName(t),
                          chunks_[ordinal].position + found.first / width, found.first % width);
    }
    count_ += found.count;
    if (reject_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("chunk %d: NaN, infinite or beyond 2^48 at %s", ordinal, first_));
    }
  }
  return chunk;
}

std::string FiniteCheck::Warning() const {
  if (count_ == 0) return "";
  return absl::StrFormat(
      "%s NaN, infinite or beyond 2^48, first at %s: queries over these rows may be answered with "
      "NaN\n  "
      "--reject-non-finite refuses a load of them",
      count_ == 1 ? "1 value is" : FormatCount(count_, "value") + " are", first_);
}

}  // namespace ckv::ctl
