// The obviously right attention: f64 throughout, one row and one key at a time, two passes, no
// blocking. Shares nothing with attention/ but its views: it decodes bf16 and e4m3 by itself.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/partial.h"

namespace ckv::reference {

// sign, 8 bits of exponent, 7 of fraction.
inline double DecodeBf16(uint16_t bits) {
  const int exponent = (bits >> 7) & 0xff;
  const int fraction = bits & 0x7f;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0xff) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -126 - 7);
  return sign * std::ldexp(128 + fraction, exponent - 127 - 7);
}

// sign, 4 bits of exponent, 3 of fraction; no infinity.
inline double DecodeE4m3(uint8_t bits) {
  const int exponent = (bits >> 3) & 0xf;
  const int fraction = bits & 0x7;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent == 0xf && fraction == 0x7) return NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -6 - 3);
  return sign * std::ldexp(8 + fraction, exponent - 7 - 3);
}

inline double ReadBf16(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return DecodeBf16(bits);
}

// The d_qk values of one stored cKV row.
inline std::vector<double> DecodeRow(const AttentionShape& shape, const std::byte* row) {
  std::vector<double> values(shape.d_qk);
  if (shape.row_dtype == RowDtype::kBf16) {
    for (uint32_t d = 0; d < shape.d_qk; ++d) values[d] = ReadBf16(row + 2 * d);
    return values;
  }
  for (uint32_t d = 0; d < shape.d_v; ++d) {
    float scale;
    std::memcpy(&scale, row + shape.d_v + d / 128 * 4, sizeof(scale));
    values[d] = DecodeE4m3(static_cast<uint8_t>(row[d])) * scale;
  }
  const std::byte* band = row + shape.d_v + shape.d_v / 128 * 4;
  for (uint32_t d = shape.d_v; d < shape.d_qk; ++d)
    values[d] = ReadBf16(band + 2 * (d - shape.d_v));
  return values;
}

// One row's partial. `o` is normalised; m is the maximum scaled logit.
struct Partial {
  std::vector<double> o;
  double m = -std::numeric_limits<double>::infinity();
  double l = 0;
  // Of the attended rows; f32 logits err in proportion to these.
  double logit_abs_max = 0;
  double logit_size = 0;     // scale x the root of the sum of the squared products
  double logit_abs_sum = 0;  // scale x the sum of the absolute products: bounds any rounding
  double value_abs_max = 0;
};

// Attends `q` to rows given as values, in the order given.
inline Partial AttendRow(const AttentionShape& shape, const std::vector<double>& q,
                         const std::vector<const std::vector<double>*>& rows) {
  Partial partial;
  partial.o.assign(shape.d_v, 0);
  std::vector<double> logits;
  for (const auto* row : rows) {
    double dot = 0;
    double squares = 0, absolute = 0;
    for (uint32_t d = 0; d < shape.d_qk; ++d) {
      const double product = q[d] * (*row)[d];
      dot += product;
      squares += product * product;
      absolute += std::fabs(product);
    }
    logits.push_back(dot * static_cast<double>(shape.softmax_scale));
    partial.m = std::fmax(partial.m, logits.back());
    partial.logit_abs_max = std::fmax(partial.logit_abs_max, std::fabs(logits.back()));
    partial.logit_size = std::fmax(partial.logit_size,
                                   std::sqrt(squares) * static_cast<double>(shape.softmax_scale));
    partial.logit_abs_sum =
        std::fmax(partial.logit_abs_sum, absolute * static_cast<double>(shape.softmax_scale));
  }
  for (size_t j = 0; j < rows.size(); ++j) {
    const double weight = std::exp(logits[j] - partial.m);
    partial.l += weight;
    for (uint32_t d = 0; d < shape.d_v; ++d) {
      partial.o[d] += weight * (*rows[j])[d];
      partial.value_abs_max = std::fmax(partial.value_abs_max, std::fabs((*rows[j])[d]));
    }
  }
  if (partial.l > 0) {
    for (double& value : partial.o) value /= partial.l;
  }
  return partial;
}

// The indices that query row i of the piece attends, in order.
inline std::vector<uint32_t> AttendedIndices(const AttentionPiece& piece, uint32_t i) {
  uint32_t limit = piece.rows.count;
  if (piece.row_limits != nullptr && piece.row_limits[i] < limit) limit = piece.row_limits[i];
  std::vector<uint32_t> indices;
  if (!piece.selection.present()) {
    for (uint32_t j = 0; j < limit; ++j) indices.push_back(j);
    return indices;
  }
  const Selection& selection = piece.selection;
  for (uint32_t j = 0; j < selection.k; ++j) {
    const int32_t index = selection.indices[size_t{i / selection.group_rows} * selection.k + j];
    if (index >= 0 && static_cast<uint32_t>(index) < limit) indices.push_back(index);
  }
  return indices;
}

// Every query row of the piece.
inline std::vector<Partial> Attend(const AttentionShape& shape, const AttentionPiece& piece) {
  std::vector<std::vector<double>> rows;
  for (uint32_t j = 0; j < piece.rows.count; ++j) {
    rows.push_back(DecodeRow(shape, piece.rows.data + size_t{j} * piece.rows.stride_bytes));
  }
  std::vector<Partial> partials;
  for (uint32_t i = 0; i < piece.q.count; ++i) {
    std::vector<double> q(shape.d_qk);
    for (uint32_t d = 0; d < shape.d_qk; ++d) {
      q[d] = DecodeBf16(piece.q.data[size_t{i} * piece.q.stride + d]);
    }
    std::vector<const std::vector<double>*> attended;
    for (const uint32_t index : AttendedIndices(piece, i)) attended.push_back(&rows[index]);
    partials.push_back(AttendRow(shape, q, attended));
  }
  return partials;
}

// Merges partials of one query row; empty ones contribute nothing.
inline Partial Merge(std::span<const Partial> parts, uint32_t d_v) {
  Partial merged;
  merged.o.assign(d_v, 0);
  for (const Partial& part : parts) {
    if (part.l > 0) merged.m = std::fmax(merged.m, part.m);
  }
  for (const Partial& part : parts) {
    if (part.l > 0) merged.l += part.l * std::exp(part.m - merged.m);
  }
  for (const Partial& part : parts) {
    if (!(part.l > 0)) continue;
    const double share = part.l * std::exp(part.m - merged.m) / merged.l;
    for (uint32_t d = 0; d < d_v; ++d) merged.o[d] += share * part.o[d];
  }
  return merged;
}

inline double AbsMax(const std::vector<double>& values) {
  double max = 0;
  for (const double value : values) max = std::fmax(max, std::fabs(value));
  return max;
}

}  // namespace ckv::reference
