// DeepSeek rows, queries and outputs for the kernel benchmarks.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/partial.h"
#include "tests/bench/floor.h"

namespace ckv::bench {

inline constexpr uint32_t kWidth = 576;
inline constexpr uint32_t kValueWidth = 512;

inline AttentionShape ShapeOf(RowDtype dtype) {
  return {kWidth, kValueWidth, kWidth - kValueWidth, dtype, 0.1147f};
}

inline uint32_t RowBytes(RowDtype dtype) { return dtype == RowDtype::kBf16 ? 1152 : 656; }

// Normal values, from a pool: drawing 131072 x 576 of them one by one takes four seconds.
inline std::vector<uint16_t> RandomBf16(size_t count) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> pool(4099), values(count);
  for (uint16_t& value : pool) value = Bf16FromFloat(normal(rng));
  for (size_t i = 0; i < count; ++i) values[i] = pool[(i + i / kWidth * 31) % pool.size()];
  return values;
}

inline std::unique_ptr<Buffer> RandomRows(uint32_t count, RowDtype dtype) {
  auto rows = std::make_unique<Buffer>(size_t{count} * RowBytes(dtype));
  const std::vector<uint16_t> values = RandomBf16(size_t{count} * kWidth);
  if (dtype == RowDtype::kBf16) {
    std::memcpy(rows->bytes().data(), values.data(), values.size() * sizeof(uint16_t));
    return rows;
  }
  std::vector<float> row(kWidth);
  for (uint32_t i = 0; i < count; ++i) {
    FloatsFromBf16(values.data() + size_t{i} * kWidth, row.data(), kWidth);
    PackFp8DsMlaRow(row.data(), kValueWidth, kWidth - kValueWidth,
                    rows->as<uint8_t>() + size_t{i} * 656);
  }
  return rows;
}

// `count` lists of `k` different rows out of row_count, in no order.
inline std::vector<std::vector<int32_t>> RandomLists(uint32_t count, uint32_t k,
                                                     uint32_t row_count) {
  std::mt19937 rng(3);
  std::vector<int32_t> all(row_count);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int32_t>> lists;
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t j = 0; j < k; ++j) std::swap(all[j], all[j + rng() % (row_count - j)]);
    lists.emplace_back(all.begin(), all.begin() + k);
  }
  return lists;
}

struct Output {
  explicit Output(uint32_t count) : o(size_t{count} * kValueWidth), m(count), l(count) {}
  PartialView view() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  std::vector<float> o, m, l;
};

}  // namespace ckv::bench
