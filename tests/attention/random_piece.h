// Pieces over random values, in memory that is NaN wherever a kernel has no business.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/mla_partial.h"
#include "attention/partial.h"

namespace ckv::test {

struct PieceOptions {
  AttentionShape shape = {576, 512, 64, RowDtype::kBf16, 0.1147f};
  uint32_t q_count = 1;
  uint32_t row_count = 1;
  uint32_t q_padding = 0;          // values between query rows
  uint32_t row_padding_bytes = 0;  // bytes between cKV rows
  uint32_t row_offset_bytes = 0;   // of the first cKV row from an aligned address; may be odd
  PartialDtype dtype = PartialDtype::kF32;
  float q_sigma = 1;
  float row_mean = 0;
};

inline uint32_t RowBytesOf(const AttentionShape& shape) {
  return shape.row_dtype == RowDtype::kBf16
             ? shape.d_qk * 2
             : shape.d_v + shape.d_v / 128 * 4 + (shape.d_qk - shape.d_v) * 2;
}

// Owns what an AttentionPiece borrows. Sizes are exact, so that asan sees a read past the end.
class TestPiece {
 public:
  TestPiece(const PieceOptions& options, std::mt19937* rng) : options_(options) {
    const AttentionShape& shape = options.shape;
    std::normal_distribution<float> normal;
    const uint32_t q_stride = shape.d_qk + options.q_padding;
    if (options.q_count > 0) {
      // 0xff is NaN in bf16, e4m3 and f32 alike.
      q_.assign(size_t{options.q_count - 1} * q_stride + shape.d_qk, 0xffff);
    }
    for (uint32_t i = 0; i < options.q_count; ++i) {
      for (uint32_t d = 0; d < shape.d_qk; ++d) {
        q_[size_t{i} * q_stride + d] = Bf16FromFloat(options.q_sigma * normal(*rng));
      }
    }
    const uint32_t row_bytes = RowBytesOf(shape);
    const uint32_t stride = row_bytes + options.row_padding_bytes;
    size_t bytes = options.row_offset_bytes;
    if (options.row_count > 0) bytes += size_t{options.row_count - 1} * stride + row_bytes;
    rows_.assign(bytes, std::byte{0xff});
    std::vector<float> values(shape.d_qk);
    for (uint32_t j = 0; j < options.row_count; ++j) {
      for (float& value : values) value = options.row_mean + normal(*rng);
      StoreRow(j, values);
    }
    piece_.q = {q_.data(), options.q_count, q_stride};
    piece_.rows = {rows_.data() + options.row_offset_bytes, options.row_count, stride};
    ResetOutput();
  }
  TestPiece(const TestPiece&) = delete;
  TestPiece& operator=(const TestPiece&) = delete;

  const AttentionShape& shape() const { return options_.shape; }
  AttentionPiece& piece() { return piece_; }
  const AttentionPiece& piece() const { return piece_; }

  void StoreRow(uint32_t j, const std::vector<float>& values) {
    const AttentionShape& shape = options_.shape;
    std::byte* to = RowAt(j);
    if (shape.row_dtype == RowDtype::kFp8DsMla) {
      PackFp8DsMlaRow(values.data(), shape.d_v, shape.d_qk - shape.d_v,
                      reinterpret_cast<uint8_t*>(to));
      return;
    }
    for (uint32_t d = 0; d < shape.d_qk; ++d) {
      const uint16_t bits = Bf16FromFloat(values[d]);
      std::memcpy(to + 2 * d, &bits, sizeof(bits));
    }
  }
  // Of an fp8_ds_mla row. Packing makes powers of two only; other engines write any scale.
  void StoreScale(uint32_t j, uint32_t group, float scale) {
    std::memcpy(RowAt(j) + options_.shape.d_v + size_t{group} * 4, &scale, sizeof(scale));
  }
  void StoreByte(uint32_t j, uint32_t at, uint8_t value) { RowAt(j)[at] = std::byte{value}; }
  void FillRowWithNan(uint32_t j) { std::memset(RowAt(j), 0xff, RowBytesOf(options_.shape)); }

  void SetSelection(std::vector<int32_t> indices, uint32_t k, uint32_t group_rows) {
    indices_ = std::move(indices);
    indices_.reserve(1);  // k = 0 still needs a pointer that is not null
    piece_.selection = {indices_.data(), k, group_rows};
  }
  void SetLimits(std::vector<uint32_t> limits) {
    limits_ = std::move(limits);
    piece_.row_limits = limits_.data();
  }

  // Output memory between guards, filled with a pattern that no result has.
  void ResetOutput() {
    const uint32_t count = options_.q_count;
    o_bytes_ = size_t{count} * options_.shape.d_v * ValueBytes();
    o_.assign(o_bytes_ + 2 * kGuardBytes, std::byte{0xab});
    m_.assign(count + 2, kGuard);
    l_.assign(count + 2, kGuard);
    piece_.out = {o_.data() + kGuardBytes, m_.data() + 1, l_.data() + 1, options_.dtype};
  }
  bool GuardsAreIntact() const {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (o_[i] != std::byte{0xab} || o_[kGuardBytes + o_bytes_ + i] != std::byte{0xab})
        return false;
    }
    return m_.front() == kGuard && m_.back() == kGuard && l_.front() == kGuard &&
           l_.back() == kGuard;
  }

  float o(uint32_t i, uint32_t d) const {
    const std::byte* at =
        o_.data() + kGuardBytes + (size_t{i} * options_.shape.d_v + d) * ValueBytes();
    if (options_.dtype == PartialDtype::kF32) {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return FloatFromBf16(bits);
  }
  float m(uint32_t i) const { return m_[i + 1]; }
  float l(uint32_t i) const { return l_[i + 1]; }

  // Row i of the result, bit for bit.
  std::vector<std::byte> RowBits(uint32_t i) const {
    const size_t row_bytes = options_.shape.d_v * ValueBytes();
    const auto begin = o_.begin() + static_cast<ptrdiff_t>(kGuardBytes + i * row_bytes);
    std::vector<std::byte> bits(begin, begin + static_cast<ptrdiff_t>(row_bytes));
    for (const float value : {m(i), l(i)}) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      bits.insert(bits.end(), bytes, bytes + sizeof(value));
    }
    return bits;
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr float kGuard = 12345.678f;

  size_t ValueBytes() const { return options_.dtype == PartialDtype::kF32 ? 4 : 2; }
  std::byte* RowAt(uint32_t j) {
    return rows_.data() + options_.row_offset_bytes +
           size_t{j} * (RowBytesOf(options_.shape) + options_.row_padding_bytes);
  }

  PieceOptions options_;
  std::vector<uint16_t> q_;
  std::vector<std::byte> rows_;
  std::vector<int32_t> indices_;
  std::vector<uint32_t> limits_;
  size_t o_bytes_ = 0;
  std::vector<std::byte> o_;
  std::vector<float> m_, l_;
  AttentionPiece piece_;
};

// A list of k indices into row_count rows, some -1, some out of range, some twice.
inline std::vector<int32_t> RandomIndices(uint32_t count, uint32_t row_count, std::mt19937* rng) {
  std::vector<int32_t> indices(count);
  for (int32_t& index : indices) {
    const uint32_t kind = (*rng)() % 16;
    if (kind == 0 || row_count == 0) {
      index = -1;
    } else if (kind == 1) {
      index = static_cast<int32_t>(row_count + (*rng)() % 1000);
    } else {
      index = static_cast<int32_t>((*rng)() % row_count);
    }
  }
  return indices;
}

}  // namespace ckv::test
