// Goal: a splice is the rotation of complex numbers and a scatter, and nothing else: bands within
// the bf16 bound of f64, every other byte bit for bit, no byte outside the run.
// Method: an f64 rotation with frequencies written again independently, random tables and offsets.

#include "client/paged/splice.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "client/paged/paged_cache.h"
#include "gtest/gtest.h"
#include "tests/attention/reference.h"
#include "tests/support/cpu_stream.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

Geometry WideGeometry(RowDtype dtype, RopeStyle style, bool yarn) {
  Geometry geometry = *NamedGeometry(yarn ? "deepseek-v3" : "glm-4.7-flash");
  geometry.layers = 1;
  geometry.dtype = dtype;
  geometry.rope.style = style;
  return geometry;
}

// Radians per position of pair i: DeepSeek's published formula, taken from its code.
double Frequency(const RopeParams& params, uint32_t d_rope, uint32_t i) {
  const double plain = 1 / std::pow(params.theta, 2.0 * i / d_rope);
  if (!params.yarn) return plain;
  const YarnParams& yarn = *params.yarn;
  const auto dimension = [&](double turns) {
    return d_rope * std::log(yarn.original_max_position / (turns * 2 * M_PI)) /
           (2 * std::log(params.theta));
  };
  const double low = std::max(std::floor(dimension(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(dimension(yarn.beta_slow)), d_rope - 1.0);
  const double slow = std::clamp((i - low) / (high - low), 0.0, 1.0);
  return plain / yarn.factor * slow + plain * (1 - slow);
}

struct Case {
  RowDtype dtype;
  RopeStyle style;
  bool yarn;
  int64_t delta;
};

// The band of `row` as pairs.
std::vector<std::complex<double>> Pairs(const Geometry& geometry, const std::byte* row) {
  const std::byte* band = row + geometry.row_bytes() - geometry.d_rope * 2;
  const uint32_t half = geometry.d_rope / 2;
  std::vector<std::complex<double>> pairs;
  for (uint32_t i = 0; i < half; ++i) {
    const bool split = geometry.rope.style == RopeStyle::kHalfSplit;
    pairs.emplace_back(reference::ReadBf16(band + 2 * (split ? i : 2 * i)),
                       reference::ReadBf16(band + 2 * (split ? half + i : 2 * i + 1)));
  }
  return pairs;
}

std::vector<std::byte> RandomRows(const Geometry& geometry, size_t count, std::mt19937& rng) {
  std::vector<std::byte> rows(count * geometry.row_bytes());
  for (std::byte& b : rows) b = static_cast<std::byte>(rng());
  // Any bytes are a latent; the bands are finite.
  for (size_t r = 0; r < count; ++r) {
    const auto band = test::RandomBf16(geometry.d_rope, rng, 3.0f);
    if (band.empty()) continue;  // copying nothing has no source
    std::memcpy(rows.data() + (r + 1) * geometry.row_bytes() - band.size() * 2, band.data(),
                band.size() * 2);
  }
  return rows;
}

struct Blocks {
  Blocks(const Geometry& geometry, uint32_t block_count, std::mt19937& rng)
      : layer(size_t{block_count} * 64 * geometry.row_bytes(), std::byte{0xa5}),
        table(block_count) {
    std::iota(table.begin(), table.end(), 0u);
    std::shuffle(table.begin(), table.end(), rng);
    std::reverse(std::find(table.begin(), table.end(), 0u), table.end());
  }
  std::byte* Row(uint64_t row, uint32_t row_bytes) {
    return layer.data() + (size_t{table[row / 64]} * 64 + row % 64) * row_bytes;
  }
  std::vector<std::byte> layer;
  std::vector<CacheBlock> table;
};

void SpliceHere(const RopeRotation& rotation, const Geometry& geometry,
                std::span<const std::byte> rows, Blocks& to, uint64_t row_begin) {
  const PagedPlace place = {.layer = to.layer,
                            .table = to.table,
                            .row_begin = row_begin,
                            .block_rows = kCacheBlockTokens};
  const absl::Status status = Splice(rotation, geometry, rows, place, test::CpuStream());
  ASSERT_TRUE(status.ok()) << status;
}

TEST(Splice, IsTheRotationWithinTheBoundAndTheLatentBitForBit) {
  std::mt19937 rng(1);
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      for (const bool yarn : {false, true}) {
        for (const int64_t delta :
             {int64_t{1}, int64_t{-1}, int64_t{2048}, int64_t{-160'000}, int64_t{1} << 30}) {
          const Geometry geometry = WideGeometry(dtype, style, yarn);
          const uint32_t row_bytes = geometry.row_bytes(), latent = row_bytes - 128;
          const uint32_t count = 150;
          const std::vector<std::byte> rows = RandomRows(geometry, count, rng);
          Blocks to(geometry, 5, rng);
          const uint64_t begin = rng() % 100;
          SpliceHere(SpliceRotation(geometry, delta), geometry, rows, to, begin);
          for (uint32_t r = 0; r < count; ++r) {
            const std::byte* in = rows.data() + size_t{r} * row_bytes;
            const std::byte* out = to.Row(begin + r, row_bytes);
            ASSERT_EQ(std::memcmp(in, out, latent), 0) << "row " << r;
            const auto before = Pairs(geometry, in), after = Pairs(geometry, out);
            for (uint32_t i = 0; i < before.size(); ++i) {
              const double angle = double(delta) * Frequency(geometry.rope, 64, i);
              const auto want = before[i] * std::polar(1.0, angle);
              ASSERT_LE(std::abs(after[i] - want), 0x1p-8 * std::abs(want))
                  << "row " << r << " pair " << i << " delta " << delta;
            }
          }
        }
      }
    }
  }
}

// Canonical values are rounded once for the store and once after the rotation: 3 x 2^-8 in all.
TEST(Splice, AgainstUnroundedValuesTheBoundIsThreeRoundings) {
  const Geometry geometry = WideGeometry(RowDtype::kBf16, RopeStyle::kInterleaved, true);
  std::mt19937 rng(2);
  std::normal_distribution<double> normal;
  const uint32_t count = 64;
  std::vector<std::complex<double>> exact;
  std::vector<uint16_t> rows(size_t{count} * 576);
  for (uint32_t r = 0; r < count; ++r) {
    for (uint32_t i = 0; i < 32; ++i) {
      exact.emplace_back(normal(rng), normal(rng));
      rows[r * 576 + 512 + 2 * i] = Bf16FromFloat(float(exact.back().real()));
      rows[r * 576 + 512 + 2 * i + 1] = Bf16FromFloat(float(exact.back().imag()));
    }
  }
  Blocks to(geometry, 1, rng);
  SpliceHere(SpliceRotation(geometry, 5000), geometry, std::as_bytes(std::span(rows)), to, 0);
  for (uint32_t r = 0; r < count; ++r) {
    const auto got = Pairs(geometry, to.Row(r, 1152));
    for (uint32_t i = 0; i < 32; ++i) {
      const auto want = exact[r * 32 + i] * std::polar(1.0, 5000 * Frequency(geometry.rope, 64, i));
      ASSERT_LE(std::abs(got[i] - want), 3 * 0x1p-8 * std::abs(want));
    }
  }
}

TEST(Splice, TouchesTheRunAndNothingElseAtAnyOffset) {
  std::mt19937 rng(3);
  const Geometry geometry = WideGeometry(RowDtype::kFp8DsMla, RopeStyle::kInterleaved, false);
  const uint32_t row_bytes = geometry.row_bytes();
  for (const int64_t delta : {int64_t{0}, int64_t{77}}) {
    for (int i = 0; i < 60; ++i) {
      Blocks to(geometry, 4, rng);
      const uint64_t begin = rng() % 256, count = rng() % (257 - begin);
      const auto rows = RandomRows(geometry, count, rng);
      const RopeRotation rotation = SpliceRotation(geometry, delta);
      SpliceHere(rotation, geometry, rows, to, begin);
      auto turned = rows;
      ASSERT_TRUE(SpliceInPlace(rotation, geometry, turned, test::CpuStream()).ok());
      if (delta == 0) {
        ASSERT_EQ(turned, rows);
      }
      for (uint64_t r = 0; r < 256; ++r) {
        const std::byte* row = to.Row(r, row_bytes);
        if (r >= begin && r < begin + count) {
          ASSERT_EQ(std::memcmp(row, turned.data() + (r - begin) * row_bytes, row_bytes), 0);
        } else {
          ASSERT_EQ(std::count(row, row + row_bytes, std::byte{0xa5}), row_bytes) << "row " << r;
        }
      }
    }
  }
}

TEST(Splice, RotatesNothingWithoutARopePart) {
  std::mt19937 rng(4);
  Geometry none = WideGeometry(RowDtype::kBf16, RopeStyle::kNone, false);
  Geometry no_rope = none;
  no_rope.d_rope = 0;
  no_rope.d_v = no_rope.d_qk;
  for (const Geometry& geometry : {none, no_rope}) {
    ASSERT_TRUE(ValidateGeometry(geometry).ok());
    EXPECT_TRUE(SpliceRotation(geometry, 12345).is_identity());
    const auto rows = RandomRows(geometry, 64, rng);
    Blocks to(geometry, 1, rng);
    SpliceHere(SpliceRotation(geometry, 12345), geometry, rows, to, 0);
    EXPECT_EQ(to.layer, rows);
  }
  EXPECT_TRUE(
      SpliceRotation(WideGeometry(RowDtype::kBf16, RopeStyle::kHalfSplit, true), 0).is_identity());
}

// Goal: why the source is always the canonical row. 64 hops from rotated rows are off by some 2^-8
// x sqrt(64); one splice of the canonical row over the same way is within its bound.
TEST(Splice, ManyHopsDriftAndOneDoesNot) {
  std::mt19937 rng(5);
  const Geometry geometry = WideGeometry(RowDtype::kBf16, RopeStyle::kInterleaved, false);
  const auto rows = RandomRows(geometry, 64, rng);
  auto hopped = rows;
  const RopeRotation hop = SpliceRotation(geometry, 100);
  for (int i = 0; i < 64; ++i)
    ASSERT_TRUE(SpliceInPlace(hop, geometry, hopped, test::CpuStream()).ok());
  Blocks to(geometry, 1, rng);
  SpliceHere(SpliceRotation(geometry, 6400), geometry, rows, to, 0);
  double drift = 0, once = 0;
  for (uint32_t r = 0; r < 64; ++r) {
    const auto before = Pairs(geometry, rows.data() + r * 1152);
    const auto many = Pairs(geometry, hopped.data() + r * 1152);
    const auto one = Pairs(geometry, to.Row(r, 1152));
    for (uint32_t i = 0; i < 32; ++i) {
      const auto want = before[i] * std::polar(1.0, 6400 * Frequency(geometry.rope, 64, i));
      drift = std::max(drift, std::abs(many[i] - want) / std::abs(want));
      once = std::max(once, std::abs(one[i] - want) / std::abs(want));
    }
  }
  EXPECT_LE(once, 0x1p-8);
  EXPECT_GT(drift, 3 * 0x1p-8);
}

}  // namespace
}  // namespace ckv
