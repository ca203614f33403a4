#include "client/paged/timing_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "attention/bf16.h"
#include "attention/fp8.h"

namespace ckv {
namespace {

TEST(TimingValues, DifferAndAreValidInEveryDtype) {
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    std::vector<std::byte> bytes(4096);
    FillTimingValues(bytes, 7, dtype);
    std::set<uint16_t> words;
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t word = 0;
      std::memcpy(&word, &bytes[i], sizeof(word));
      const float value = std::abs(FloatFromBf16(word));
      EXPECT_GE(value, 0x1p-5f);
      EXPECT_LT(value, 2);
      words.insert(word);
      if (dtype == RowDtype::kBf16) continue;
      for (const size_t at : {i, i + 1}) {
        const float small = std::abs(FloatFromE4m3(static_cast<uint8_t>(bytes[at])));
        EXPECT_GE(small, .5f);
        EXPECT_LT(small, 2);
      }
      float scale = 0;
      if (i % 4 == 0) std::memcpy(&scale, &bytes[i], sizeof(scale));
      EXPECT_LT(std::abs(scale), 2);
    }
    EXPECT_GT(words.size(), dtype == RowDtype::kBf16 ? 400u : 60u);
  }
}

TEST(TimingValues, HaveBothSignsAndDependOnTheSeedAlone) {
  const std::vector<uint16_t> queries = TimingQueries(10, 100);
  EXPECT_EQ(queries, TimingQueries(10, 100));
  size_t negative = 0;
  for (const uint16_t value : queries) negative += value >> 15;
  EXPECT_GT(negative, 400u);
  EXPECT_LT(negative, 600u);
  std::vector<uint16_t> rows[3] = {queries, queries, queries};
  for (uint32_t seed = 0; seed < 3; ++seed)
    FillTimingValues(std::as_writable_bytes(std::span(rows[seed])), seed);
  EXPECT_NE(rows[0], rows[1]);
  EXPECT_NE(rows[1], rows[2]);
  EXPECT_NE(rows[0], queries);
}

TEST(TimingValues, AnOddByteStays) {
  std::vector<std::byte> bytes(3, std::byte{7});
  FillTimingValues(bytes, 1);
  EXPECT_EQ(bytes[2], std::byte{7});
}

}  // namespace
}  // namespace ckv
