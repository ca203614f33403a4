// Goal: accepted queries never have a logit that overflows, over any rows that were loaded without
// a warning. NaN, infinities and larger values are refused by name.
// Method: values around the limit in every place; then every kernel target over the largest rows
// and queries, whose signs cancel and do not, against f64.

#include "attention/query/query_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "tests/attention/each_target.h"
#include "tests/attention/reference.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(CheckQueryValues, NamesTheFirstThatIsBeyond) {
  for (const uint32_t stride : {40u, 48u}) {
    for (const float bad : {NAN, -NAN, kInf, -kInf, 3e38f, -3e38f, 1.9e19f, -1.9e19f}) {
      for (const uint32_t row : {0u, 2u, 4u}) {
        for (const uint32_t column : {0u, 17u, 39u}) {
          std::vector<uint16_t> q(5 * stride, Bf16FromFloat(-kQueryMagnitudeMax));
          q[row * stride + column] = Bf16FromFloat(bad);
          const absl::Status status = CheckQueryValues({q.data(), 5, stride}, 40);
          EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad << " " << status;
          EXPECT_THAT(std::string(status.message()),
                      AllOf(HasSubstr("query row " + std::to_string(row) + ":"),
                            HasSubstr("value " + std::to_string(column) + " ")));
        }
      }
    }
  }
}

TEST(CheckQueryValues, TakesAllOthers) {
  // The values between rows belong to no query.
  std::vector<uint16_t> q(5 * 48, Bf16FromFloat(kInf));
  std::mt19937 rng(3);
  const float values[] = {0, -0.0f, 1e-40f, 1, -7.5f, kQueryMagnitudeMax, -kQueryMagnitudeMax};
  for (uint32_t row = 0; row < 5; ++row) {
    for (uint32_t d = 0; d < 40; ++d) q[row * 48 + d] = Bf16FromFloat(values[rng() % 7]);
  }
  EXPECT_TRUE(CheckQueryValues({q.data(), 5, 48}, 40).ok());
  q[1] = Bf16FromFloat(1.5f * kQueryMagnitudeMax);
  EXPECT_FALSE(CheckQueryValues({q.data(), 5, 48}, 40).ok());
  EXPECT_TRUE(CheckQueryValues({q.data(), 5, 48}, 40, /*slack=*/2).ok());
}

// All products of a row have one sign, or the first half has the other, so that an f32 that ended
// earlier would overflow to an infinity on the way to a small sum.
TEST(CheckQueryValues, NothingOverflowsAtTheLimit) {
  constexpr uint32_t kWidth = 576, kValues = 512, kKeys = 150;
  const AttentionShape shape = {kWidth, kValues, 64, RowDtype::kBf16, 0.1f};
  WorkerPool pool(1);
  const uint16_t q_max = Bf16FromFloat(kQueryMagnitudeMax);
  for (const uint32_t q_count : {1u, 5u, 20u}) {
    std::vector<uint16_t> q(q_count * kWidth, q_max), rows(kKeys * kWidth);
    for (uint32_t j = 0; j < kKeys; ++j) {
      for (uint32_t d = 0; d < kWidth; ++d) {
        const bool negative = j % 3 == 0 || (j % 3 == 1 && d < kWidth / 2);
        // Key 2 is the only one with all products positive and the largest: it takes all weight.
        const float size = j == 2 ? kRowMagnitudeMax : kRowMagnitudeMax / 2;
        rows[j * kWidth + d] = Bf16FromFloat(negative ? -size : size);
      }
    }
    for (const Precision precision : {Precision::kExact, Precision::kWire, Precision::kFast}) {
      test::ForEachTarget([&] {
        std::vector<float> o(q_count * kValues), m(q_count), l(q_count);
        AttentionPiece piece;
        piece.q = {q.data(), q_count, kWidth};
        piece.rows = {reinterpret_cast<const std::byte*>(rows.data()), kKeys, kWidth * 2};
        piece.out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
        piece.precision = precision;
        AttendPartials(shape, {&piece, 1}, pool);
        const std::vector<reference::Partial> due = reference::Attend(shape, piece);
        for (uint32_t i = 0; i < q_count; ++i) {
          EXPECT_NEAR(double{m[i]} / due[i].m, 1, 1e-4);
          EXPECT_EQ(l[i], 1);
          for (uint32_t d = 0; d < kValues; d += 37)
            ASSERT_NEAR(double{o[i * kValues + d]} / due[i].o[d], 1, 1e-2);
        }
      });
    }
  }
}

}  // namespace
}  // namespace ckv
