// Goal: rounding to bf16 is to nearest even, for every value, in scalar and in vector code. A
// truncating version passes every tolerance elsewhere.
// Method: all 2^16 patterns, and around each of them the tie, its two f32 neighbours and both ends.

#include "attention/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/mla_partial.h"
#include "tests/attention/reference.h"

namespace ckv {
namespace {

TEST(Bf16, WideningIsExactForEveryPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float value = FloatFromBf16(pattern);
    const double want = reference::DecodeBf16(pattern);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(value)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), want) << bits;
      ASSERT_EQ(Bf16FromFloat(value), pattern) << bits;
    }
  }
}

// The f32 values between two neighbouring patterns: `low` is the upper half of all of them.
TEST(Bf16, EveryTieRoundsToEven) {
  for (uint32_t low = 0; low < 65536; ++low) {
    if ((low & 0x7fff) >= 0x7f80) continue;  // infinity and NaN
    const uint32_t base = low << 16;
    const auto rounded = [base](uint32_t tail) {
      return Bf16FromFloat(std::bit_cast<float>(base | tail));
    };
    const auto down = static_cast<uint16_t>(low), up = static_cast<uint16_t>(low + 1);
    ASSERT_EQ(rounded(0x0001), down);
    ASSERT_EQ(rounded(0x7fff), down);
    ASSERT_EQ(rounded(0x8000), low % 2 == 0 ? down : up);
    ASSERT_EQ(rounded(0x8001), up);
    ASSERT_EQ(rounded(0xffff), up);
  }
}

TEST(Bf16, OverflowIsInfinityAndNanStaysNan) {
  const float max = std::numeric_limits<float>::max();
  EXPECT_EQ(Bf16FromFloat(max), 0x7f80);
  EXPECT_EQ(Bf16FromFloat(-max), 0xff80);
  EXPECT_EQ(Bf16FromFloat(INFINITY), 0x7f80);
  EXPECT_EQ(Bf16FromFloat(-0.0f), 0x8000);
  // A NaN whose payload is only in the lower half must not round to infinity.
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(bits))))) << bits;
  }
}

TEST(Bf16, ArraysEqualScalarsOnEveryTarget) {
  std::vector<float> values;
  for (uint32_t low = 0; low < 65536; low += 3) {
    for (const uint32_t tail : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(low << 16 | tail));
    }
  }
  for (const std::string_view target : KernelTargets()) {
    SCOPED_TRACE(testing::Message() << target);
    ASSERT_TRUE(ForceKernelTarget(target).ok());
    for (const size_t count : {values.size(), size_t{0}, size_t{1}, size_t{15}, size_t{33}}) {
      std::vector<uint16_t> rounded(count + 1, 0x1234);
      Bf16FromFloats(values.data() + 1, rounded.data(), std::min(count, values.size() - 1));
      std::vector<float> widened(count + 1, 7.0f);
      FloatsFromBf16(rounded.data(), widened.data(), count);
      for (size_t i = 0; i < std::min(count, values.size() - 1); ++i) {
        ASSERT_EQ(rounded[i], Bf16FromFloat(values[i + 1])) << i;
        ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]), uint32_t{rounded[i]} << 16) << i;
      }
      EXPECT_EQ(rounded[count], 0x1234);
      EXPECT_EQ(widened[count], 7.0f);
    }
  }
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

}  // namespace
}  // namespace ckv
