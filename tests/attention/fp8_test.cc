// Goal: e4m3 and the fp8_ds_mla row are exact where they can be and nearest where they cannot.
// Method: all 256 patterns, the ties between them, saturation, and rows there and back.

#include "attention/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "tests/attention/fp8_row.h"
#include "tests/attention/reference.h"

namespace ckv {
namespace {

TEST(E4m3, EveryPatternThereAndBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto pattern = static_cast<uint8_t>(bits);
    const double want = reference::DecodeE4m3(pattern);
    const float value = FloatFromE4m3(pattern);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(E4m3FromFloat(value), 0x7f);
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), want) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    EXPECT_EQ(E4m3FromFloat(value), pattern) << bits;
  }
}

TEST(E4m3, TiesRoundToEvenAndNeighboursToNearest) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const auto down = static_cast<uint8_t>(bits), up = static_cast<uint8_t>(bits + 1);
    const float tie = (FloatFromE4m3(down) + FloatFromE4m3(up)) / 2;
    EXPECT_EQ(E4m3FromFloat(tie), bits % 2 == 0 ? down : up) << bits;
    EXPECT_EQ(E4m3FromFloat(std::nextafter(tie, 0.0f)), down) << bits;
    EXPECT_EQ(E4m3FromFloat(std::nextafter(tie, 1e9f)), up) << bits;
    EXPECT_EQ(E4m3FromFloat(-tie), E4m3FromFloat(tie) | 0x80) << bits;
  }
}

TEST(E4m3, SaturatesAndNeverMakesNan) {
  for (const float value : {448.0f, 448.1f, 463.9f, 464.0f, 480.0f, 1e9f, INFINITY,
                            std::numeric_limits<float>::max()}) {
    EXPECT_EQ(E4m3FromFloat(value), 0x7e) << value;
    EXPECT_EQ(E4m3FromFloat(-value), 0xfe) << value;
  }
  EXPECT_EQ(E4m3FromFloat(1e-30f), 0);
  EXPECT_EQ(E4m3FromFloat(-0.0f), 0x80);
  EXPECT_EQ(E4m3FromFloat(NAN), 0x7f);
  EXPECT_EQ(E4m3FromFloat(-NAN), 0x7f);
}

constexpr uint32_t kRowBytes = 656;

float ScaleAt(const std::vector<uint8_t>& row, uint32_t group) {
  float scale;
  std::memcpy(&scale, row.data() + 512 + group * 4, sizeof(scale));
  return scale;
}

// amax -> scale: exact powers of two stay, others are rounded up, tiny ones end at
// 2^ceil(log2(1e-4)).
TEST(Fp8DsMlaRow, ScalesArePowersOfTwo) {
  const std::pair<float, float> cases[] = {
      {448.0f, 1.0f},   {448.1f, 2.0f},    {224.0f, 0.5f},  {225.0f, 1.0f},  {1.0f, 0x1p-8f},
      {0.0f, 0x1p-13f}, {1e-6f, 0x1p-13f}, {-900.0f, 4.0f}, {-896.0f, 2.0f},
  };
  for (const auto& [amax, want] : cases) {
    std::vector<float> row(576, 0.0f);
    row[130] = amax;
    std::vector<uint8_t> packed(kRowBytes);
    PackFp8DsMlaRow(row.data(), 512, 64, packed.data());
    EXPECT_EQ(ScaleAt(packed, 1), want) << amax;
    EXPECT_EQ(ScaleAt(packed, 0), 0x1p-13f);
  }
}

TEST(Fp8DsMlaRow, RoundTripsARow) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, std::exp2(static_cast<float>(seed % 20) - 10));
    std::vector<float> row(576);
    for (float& value : row) value = normal(rng);
    std::vector<uint8_t> packed(kRowBytes + 1, 0xcd);  // an odd address
    PackFp8DsMlaRow(row.data(), 512, 64, packed.data() + 1);
    EXPECT_EQ(packed[0], 0xcd);
    std::vector<float> back(576);
    test::UnpackFp8DsMlaRow(packed.data() + 1, 512, 64, back.data());
    for (uint32_t i = 0; i < 512; ++i) {
      float scale;
      std::memcpy(&scale, packed.data() + 1 + 512 + i / 128 * 4, sizeof(scale));
      // Half a step: 2^-4 of the value, or 2^-10 scales below the smallest normal.
      ASSERT_NEAR(back[i], row[i], std::max(std::fabs(row[i]) * 0x1p-4f, scale * 0x1p-10f)) << i;
    }
    for (uint32_t i = 512; i < 576; ++i) {
      ASSERT_EQ(back[i], FloatFromBf16(Bf16FromFloat(row[i]))) << i;
    }
    // Decoded values are on the grid, so a second pass changes no value (a scale may shrink).
    std::vector<uint8_t> again(kRowBytes);
    PackFp8DsMlaRow(back.data(), 512, 64, again.data());
    std::vector<float> twice(576);
    test::UnpackFp8DsMlaRow(again.data(), 512, 64, twice.data());
    ASSERT_EQ(twice, back);
  }
}

TEST(Fp8DsMlaRow, InfinitySaturatesUnderAFiniteScale) {
  std::vector<float> row(576, 1.0f);
  row[5] = INFINITY;
  std::vector<uint8_t> packed(kRowBytes);
  PackFp8DsMlaRow(row.data(), 512, 64, packed.data());
  EXPECT_TRUE(std::isfinite(ScaleAt(packed, 0)));
  EXPECT_EQ(packed[5], 0x7e);
}

}  // namespace
}  // namespace ckv
