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
  std::vector<std::byte> bytes(4096);
  FillTimingValues(bytes);
  std::set<uint16_t> words;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint16_t word = 0;
    std::memcpy(&word, &bytes[i], sizeof(word));
    const float value = std::abs(FloatFromBf16(word));
    EXPECT_GE(value, 0x1p-5f);
    EXPECT_LT(value, 2);
    words.insert(word);
  }
  EXPECT_GT(words.size(), 400u);
  for (const std::byte byte : bytes)
    EXPECT_TRUE(std::isfinite(FloatFromE4m3(static_cast<uint8_t>(byte))));
  for (size_t i = 0; i < bytes.size(); i += 4) {
    float scale = 0;
    std::memcpy(&scale, &bytes[i], sizeof(scale));
    EXPECT_TRUE(std::isfinite(scale));
  }
}

TEST(TimingValues, HaveBothSignsAndAreTheSameEachTime) {
  const std::vector<uint16_t> values = TimingValues(1000);
  EXPECT_EQ(values, TimingValues(1000));
  size_t negative = 0;
  for (const uint16_t value : values) negative += value >> 15;
  EXPECT_GT(negative, 400u);
  EXPECT_LT(negative, 600u);
}

TEST(TimingValues, AnOddByteStays) {
  std::vector<std::byte> bytes(3, std::byte{7});
  FillTimingValues(bytes);
  EXPECT_EQ(bytes[2], std::byte{7});
}

}  // namespace
}  // namespace ckv
