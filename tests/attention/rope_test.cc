// Goal: rotation is the rotation of complex numbers, in both pair orders, with plain and YaRN
// frequencies, exact enough at any position.
// Method: compare with f64 complex multiplication and with a second, straightforward YaRN; check
// identity, composition and the effect of a selection that is rotated to wrong positions.

#include "attention/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/mla_partial.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"
#include "tests/attention/rotate_bf16.h"

namespace ckv {
namespace {

const RopeParams kPlain = {RopeStyle::kInterleaved, 1e4, std::nullopt};

RopeParams DeepSeekYarn() {
  RopeParams params = kPlain;
  YarnParams yarn;
  yarn.factor = 40;
  yarn.mscale = 1;
  yarn.mscale_all_dim = 1;
  params.yarn = yarn;
  return params;
}

RopeParams WithStyle(RopeParams params, RopeStyle style) {
  params.style = style;
  return params;
}

// Pair i of a band, as one complex number.
std::complex<double> PairOf(const std::vector<double>& band, RopeStyle style, size_t i) {
  const size_t half = band.size() / 2;
  return style == RopeStyle::kInterleaved ? std::complex<double>(band[2 * i], band[2 * i + 1])
                                          : std::complex<double>(band[i], band[half + i]);
}

std::vector<double> BandOf(const std::vector<uint16_t>& rows, size_t begin, uint32_t d_rope) {
  std::vector<double> band(d_rope);
  for (uint32_t i = 0; i < d_rope; ++i) band[i] = reference::DecodeBf16(rows[begin + i]);
  return band;
}

std::vector<uint16_t> RandomRows(size_t count, std::mt19937* rng) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(count);
  for (uint16_t& value : rows) value = Bf16FromFloat(normal(*rng));
  return rows;
}

TEST(RopeFrequencies, Plain) {
  const std::vector<double> frequencies = RopeFrequencies(kPlain, 64);
  ASSERT_EQ(frequencies.size(), 32u);
  EXPECT_EQ(frequencies[0], 1.0);
  EXPECT_NEAR(frequencies[16], 0.01, 1e-16);
  EXPECT_NEAR(frequencies[31], std::pow(1e4, -62.0 / 64), 1e-18);
}

// The same definition, from its description: a pair that turns more than beta_fast times over the
// original context stays, one that turns less than beta_slow times is slowed by the factor, linear
// between.
std::vector<double> StraightforwardYarn(double theta, int d_rope, const YarnParams& yarn) {
  const auto dimension_of = [&](double turns) {
    return d_rope * std::log(yarn.original_max_position / (turns * 2 * M_PI)) /
           (2 * std::log(theta));
  };
  int low = static_cast<int>(std::floor(dimension_of(yarn.beta_fast)));
  int high = static_cast<int>(std::ceil(dimension_of(yarn.beta_slow)));
  if (low < 0) low = 0;
  if (high > d_rope - 1) high = d_rope - 1;
  std::vector<double> result;
  for (int i = 0; i < d_rope / 2; ++i) {
    const double extrapolated = 1 / std::pow(theta, 2.0 * i / d_rope);
    const double interpolated = 1 / (yarn.factor * std::pow(theta, 2.0 * i / d_rope));
    double share = low == high ? (i > low ? 1.0 : 0.0)
                               : static_cast<double>(i - low) / static_cast<double>(high - low);
    if (share < 0) share = 0;
    if (share > 1) share = 1;
    const double mask = 1 - share;
    result.push_back(interpolated * (1 - mask) + extrapolated * mask);
  }
  return result;
}

TEST(RopeFrequencies, YarnOfPublishedModels) {
  YarnParams deepseek = *DeepSeekYarn().yarn;
  YarnParams kimi;  // theta 5e4, x32, both betas 1: the ramp is one step wide
  kimi.factor = 32;
  kimi.beta_fast = 1;
  YarnParams mistral;  // x128
  mistral.factor = 128;
  const std::pair<double, YarnParams> cases[] = {{1e4, deepseek}, {5e4, kimi}, {1e4, mistral}};
  for (const auto& [theta, yarn] : cases) {
    for (const uint32_t d_rope : {64u, 32u}) {
      RopeParams params = {RopeStyle::kInterleaved, theta, yarn};
      const auto got = RopeFrequencies(params, d_rope);
      const auto want = StraightforwardYarn(theta, static_cast<int>(d_rope), yarn);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-14) << i;
    }
  }
  // DeepSeek-V3: the ramp runs from pair 10 to pair 23.
  const auto yarn = RopeFrequencies(DeepSeekYarn(), 64), plain = RopeFrequencies(kPlain, 64);
  EXPECT_EQ(yarn[10], plain[10]);
  EXPECT_LT(yarn[11], plain[11]);
  EXPECT_GT(yarn[22], plain[22] / 40);
  EXPECT_DOUBLE_EQ(yarn[23], plain[23] / 40);
}

// low == high: beta 1/1 with a context whose correction index is an integer.
TEST(RopeFrequencies, YarnRampOfNoWidthIsAStep) {
  YarnParams yarn;
  yarn.factor = 4;
  yarn.beta_fast = yarn.beta_slow = 1;
  yarn.original_max_position = 1;  // the index is negative: both ends are clamped to it
  const auto frequencies = RopeFrequencies({RopeStyle::kInterleaved, 1e4, yarn}, 64);
  for (const double frequency : frequencies) EXPECT_TRUE(std::isfinite(frequency));
}

// At 160,000 an angle computed in f32 is off by 5.6e-3; f64 leaves only the rounding of cos and
// sin.
TEST(RopeRotation, AnglesAtFarPositions) {
  for (const int64_t delta : {1, 160000, -160000, 1000000}) {
    const RopeRotation rotation(kPlain, 64, delta);
    double worst_f32 = 0;
    for (size_t i = 0; i < 32; ++i) {
      const long double angle = std::pow(10000.0L, -2.0L * static_cast<long double>(i) / 64) *
                                static_cast<long double>(delta);
      EXPECT_NEAR(rotation.cos()[i], static_cast<double>(std::cos(angle)), 3.1e-8) << i;
      EXPECT_NEAR(rotation.sin()[i], static_cast<double>(std::sin(angle)), 3.1e-8) << i;
      const float f32_angle =
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / 64) * static_cast<float>(delta);
      worst_f32 = std::max(worst_f32, static_cast<double>(std::fabs(f32_angle - angle)));
    }
    // A mistake would show here.
    if (delta == 160000) {
      EXPECT_GT(worst_f32, 1e-3);
    }
  }
}

TEST(RotateBands, IsComplexRotationInBothOrders) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    for (const uint32_t d_rope : {64u, 32u, 2u, 6u, 34u}) {
      for (const std::string_view target : KernelTargets()) {
        SCOPED_TRACE(testing::Message() << target << " d_rope " << d_rope);
        ASSERT_TRUE(ForceKernelTarget(target).ok());
        std::mt19937 rng(d_rope);
        const uint32_t width = d_rope + 10, stride = width + 3, count = 5;
        const auto before = RandomRows(size_t{count} * stride, &rng);
        auto after = before;
        const RopeParams params = WithStyle(DeepSeekYarn(), style);
        const int64_t delta = 4321;
        test::RotateBandsBf16(RopeRotation(params, d_rope, delta), after.data(), count, width,
                              stride);
        const auto frequencies = RopeFrequencies(params, d_rope);
        for (uint32_t row = 0; row < count; ++row) {
          for (uint32_t i = 0; i < stride; ++i) {
            if (i >= 10 && i < width) continue;
            ASSERT_EQ(after[row * stride + i], before[row * stride + i]) << "untouched " << i;
          }
          const auto from = BandOf(before, row * stride + 10, d_rope);
          const auto to = BandOf(after, row * stride + 10, d_rope);
          for (size_t i = 0; i < d_rope / 2; ++i) {
            const auto pair = PairOf(from, style, i);
            const auto want = pair * std::polar(1.0, frequencies[i] * delta);
            // Half a step of each component: well inside the stated 3 x 2^-8.
            ASSERT_LE(std::abs(PairOf(to, style, i) - want), 0x1p-8 * std::abs(pair)) << i;
          }
        }
      }
    }
  }
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

TEST(RotateBands, IdentityTouchesNothing) {
  std::mt19937 rng(3);
  const auto before = RandomRows(4 * 20, &rng);
  auto after = before;
  const RopeRotation identity(kPlain, 16, 0);
  EXPECT_TRUE(identity.is_identity());
  test::RotateBandsBf16(identity, after.data(), 4, 20, 20);
  EXPECT_EQ(after, before);
  test::RotateBandsBf16(RopeRotation(WithStyle(kPlain, RopeStyle::kNone), 16, 5), after.data(), 4,
                        20, 20);
  EXPECT_EQ(after, before);
}

// The undefined-behaviour sanitizer sees a null pointer that is passed on or moved.
TEST(RotateBands, NoRowsNeedNoMemory) {
  for (const int64_t delta : {0, 5}) {
    const RopeRotation rotation(kPlain, 16, delta);
    RotateBandsF32(rotation, nullptr, 0, 20, 20);
    test::CopyRotatedBf16(rotation, nullptr, 20, nullptr, 0, 20);
    CopyRotatedRows(rotation, nullptr, 40, nullptr, 0, 40);
    CopyRotatedRows(rotation, nullptr, 48, nullptr, 0, 40);
    ScatterRotatedRows(rotation, {.data = nullptr, .count = 0, .stride_bytes = 40}, 40,
                       {.layer = {}, .table = {}, .row_begin = 0, .block_rows = 16});
    RotateBandsFp8DsMla(rotation, nullptr, 0, 40, 40);
  }
}

TEST(RotateBands, ForthAndBackAndInTwoSteps) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    const RopeParams params = WithStyle(DeepSeekYarn(), style);
    std::mt19937 rng(4);
    std::normal_distribution<float> normal;
    std::vector<float> start(3 * 70);
    for (float& value : start) value = normal(rng);
    auto once = start, twice = start;
    RotateBandsF32(RopeRotation(params, 64, 1500), once.data(), 3, 70, 70);
    RotateBandsF32(RopeRotation(params, 64, 1000), twice.data(), 3, 70, 70);
    RotateBandsF32(RopeRotation(params, 64, 500), twice.data(), 3, 70, 70);
    for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(once[i], twice[i], 2e-6) << i;
    RotateBandsF32(RopeRotation(params, 64, -1500), once.data(), 3, 70, 70);
    for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(once[i], start[i], 2e-6) << i;
  }
}

// What attention rests on: the product of a rotated query and a rotated key depends on the
// difference of their positions only.
TEST(RotateBands, ProductsDependOnTheDifferenceOnly) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    const RopeParams params = WithStyle(DeepSeekYarn(), style);
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    std::vector<float> q(64), k(64);
    for (float& value : q) value = normal(rng);
    for (float& value : k) value = normal(rng);
    const auto product = [&](int64_t q_position, int64_t k_position) {
      auto a = q, b = k;
      RotateBandsF32(RopeRotation(params, 64, q_position), a.data(), 1, 64, 64);
      RotateBandsF32(RopeRotation(params, 64, k_position), b.data(), 1, 64, 64);
      double sum = 0;
      for (size_t i = 0; i < 64; ++i) sum += static_cast<double>(a[i]) * b[i];
      return sum;
    };
    EXPECT_NEAR(product(70000, 65000), product(5000, 0), 2e-5);
    EXPECT_NEAR(product(70000, 65000), product(0, -5000), 2e-5);
    EXPECT_GT(std::fabs(product(70000, 65000) - product(70000, 64990)), 1e-2);
  }
}

TEST(RotateBands, CopyAndFp8RowsAgreeWithInPlace) {
  std::mt19937 rng(6);
  const RopeRotation rotation(DeepSeekYarn(), 64, -77);
  const uint32_t width = 576, stride = 600, count = 3;
  const auto rows = RandomRows(size_t{count} * stride, &rng);
  auto in_place = rows;
  test::RotateBandsBf16(rotation, in_place.data(), count, width, stride);
  std::vector<uint16_t> copied(size_t{count} * width);
  test::CopyRotatedBf16(rotation, rows.data(), stride, copied.data(), count, width);
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(std::memcmp(copied.data() + i * width, in_place.data() + i * stride, width * 2), 0);
  }
  // The same bands as the last 128 of 656 bytes, at odd addresses.
  const uint32_t row_bytes = 656, stride_bytes = 671;
  std::vector<std::byte> fp8(1 + size_t{count} * stride_bytes, std::byte{0x5a});
  std::byte* base = fp8.data() + 1;
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(base + i * stride_bytes + 528, rows.data() + i * stride + 512, 128);
  }
  RotateBandsFp8DsMla(rotation, base, count, row_bytes, stride_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(std::memcmp(base + i * stride_bytes + 528, in_place.data() + i * stride + 512, 128),
              0);
    for (uint32_t b = 0; b < 528; ++b) ASSERT_EQ(base[i * stride_bytes + b], std::byte{0x5a});
    for (uint32_t b = row_bytes; b < stride_bytes; ++b) {
      if (i + 1 == count) break;
      ASSERT_EQ(base[i * stride_bytes + b], std::byte{0x5a});
    }
  }
}

// A scattered selection that is rotated as if its rows were contiguous gives another answer: by
// more than 20 %.
TEST(RotateBands, ReHomingAScatteredSelectionDiverges) {
  const uint32_t d_qk = 576, d_rope = 64, row_count = 32, step = 61;
  std::mt19937 rng(7);
  // Rows with a strong band, as trained models have: position decides.
  test::PieceOptions options;
  options.q_count = 8;
  options.row_count = row_count;
  test::TestPiece piece(options, &rng);
  AttentionPiece one = piece.piece();
  std::vector<uint16_t> rows(size_t{row_count} * d_qk);
  std::memcpy(rows.data(), one.rows.data, rows.size() * 2);
  // Canonical: row j is at position j * step. Wrong: row j at position j.
  auto canonical = rows, rehomed = rows;
  for (uint32_t j = 0; j < row_count; ++j) {
    test::RotateBandsBf16(RopeRotation(kPlain, d_rope, j * step), canonical.data() + j * d_qk, 1,
                          d_qk, d_qk);
    test::RotateBandsBf16(RopeRotation(kPlain, d_rope, j), rehomed.data() + j * d_qk, 1, d_qk,
                          d_qk);
  }
  const auto attend = [&](const std::vector<uint16_t>& from) {
    one.rows.data = reinterpret_cast<const std::byte*>(from.data());
    return reference::Attend(piece.shape(), one);
  };
  const auto right = attend(canonical), wrong = attend(rehomed);
  double difference = 0, norm = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    for (uint32_t d = 0; d < 512; ++d) {
      difference += std::pow(right[i].o[d] - wrong[i].o[d], 2);
      norm += std::pow(right[i].o[d], 2);
    }
  }
  EXPECT_GT(std::sqrt(difference / norm), 0.2);
  RecordProperty("relative_l2", std::to_string(std::sqrt(difference / norm)));
}

}  // namespace
}  // namespace ckv
