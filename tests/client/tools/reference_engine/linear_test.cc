// Goal: a dense layer is right, and a row's bits do not depend on what shares the call.
// Method: compare with float64 over widths around the tile and panel sizes; then compute the same
// rows alone, in groups and on two threads, and compare bit for bit. All on every kernel target,
// with bf16 weights, which a tile unit takes, and with others.

#include "client/tools/reference_engine/linear.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/worker_pool.h"
#include "gtest/gtest.h"
#include "tests/attention/each_target.h"

namespace ckv {
namespace {

std::vector<float> RandomValues(std::mt19937& rng, size_t count) {
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> values(count);
  for (float& v : values) v = value(rng);
  return values;
}

std::vector<float> RandomWeights(std::mt19937& rng, size_t count) {
  std::vector<float> weights = RandomValues(rng, count);
  for (float& w : weights) w = FloatFromBf16(Bf16FromFloat(w));
  return weights;
}

struct Shape {
  uint32_t rows, input, output;
};
// Tiles are 6 rows, panels 32 columns, vectors 4 to 16.
constexpr Shape kShapes[] = {{1, 1, 1},    {1, 256, 32}, {5, 17, 31},   {6, 64, 33},
                             {7, 512, 48}, {13, 3, 100}, {64, 32, 512}, {64, 256, 257}};

void CheckAgainstFloat64(bool bf16_weights) {
  WorkerPool pool(1);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.input << " x " << shape.output);
    std::mt19937 rng(shape.output);
    const size_t weight_count = size_t{shape.input} * shape.output;
    const std::vector<float> w =
        bf16_weights ? RandomWeights(rng, weight_count) : RandomValues(rng, weight_count);
    // The strides are wider than the rows: the gaps must be neither read nor written.
    const size_t x_stride = shape.input + 3, y_stride = shape.output + 5;
    const std::vector<float> x = RandomValues(rng, shape.rows * x_stride);
    std::vector<float> y(shape.rows * y_stride, 7.0f);
    const Linear linear(shape.input, shape.output, w);
    ASSERT_EQ(linear.packed().empty(), !bf16_weights);
    const LinearJob job = {&linear, x.data(), x_stride, y.data(), y_stride};
    RunLinears({&job, 1}, shape.rows, pool);
    for (uint32_t row = 0; row < shape.rows; ++row) {
      for (uint32_t n = 0; n < shape.output; ++n) {
        double sum = 0;
        for (uint32_t k = 0; k < shape.input; ++k) {
          sum += double{x[row * x_stride + k]} * w[size_t{k} * shape.output + n];
        }
        // One rounding of at most half an ulp a step, of sums below sqrt(input) here.
        const double tolerance = 6e-8 * shape.input * (1 + std::sqrt(shape.input));
        ASSERT_NEAR(y[row * y_stride + n], sum, tolerance) << row << ", " << n;
      }
      for (size_t n = shape.output; n < y_stride; ++n) ASSERT_EQ(y[row * y_stride + n], 7.0f);
    }
  }
}

TEST(Linear, EqualsFloat64) {
  test::ForEachTarget([] {
    CheckAgainstFloat64(true);
    CheckAgainstFloat64(false);
  });
}

void CheckRowsAlone() {
  constexpr uint32_t kRows = 64, kInput = 256;
  std::mt19937 rng(3);
  const std::vector<float> x = RandomValues(rng, size_t{kRows} * kInput);
  const Linear first(kInput, 300, RandomWeights(rng, size_t{kInput} * 300));
  const Linear second(kInput, 64, RandomValues(rng, size_t{kInput} * 64));  // no unit takes it

  // All rows and both matrices in one call of two threads.
  WorkerPool two(2);
  std::vector<float> whole_first(kRows * 300), whole_second(kRows * 64);
  const LinearJob jobs[] = {{&first, x.data(), kInput, whole_first.data(), 300},
                            {&second, x.data(), kInput, whole_second.data(), 64}};
  RunLinears(jobs, kRows, two);

  WorkerPool one(1);
  for (const uint32_t group : {1u, 2u, 6u, 7u, 11u}) {
    std::vector<float> y_first(kRows * 300), y_second(kRows * 64);
    for (uint32_t begin = 0; begin < kRows; begin += group) {
      const uint32_t rows = std::min(group, kRows - begin);
      const float* part = x.data() + size_t{begin} * kInput;
      const LinearJob a = {&first, part, kInput, y_first.data() + size_t{begin} * 300, 300};
      const LinearJob b = {&second, part, kInput, y_second.data() + size_t{begin} * 64, 64};
      RunLinears({&a, 1}, rows, one);
      RunLinears({&b, 1}, rows, one);
    }
    EXPECT_EQ(std::memcmp(y_first.data(), whole_first.data(), y_first.size() * 4), 0) << group;
    EXPECT_EQ(std::memcmp(y_second.data(), whole_second.data(), y_second.size() * 4), 0) << group;
  }
}

TEST(Linear, ARowsBitsDoNotDependOnTheCall) { test::ForEachTarget(CheckRowsAlone); }

TEST(Linear, NoRowsWriteNothing) {
  WorkerPool pool(1);
  const std::vector<float> w(4, 1.0f);
  const Linear linear(2, 2, w);
  float y[2] = {3, 3};
  const LinearJob job = {&linear, w.data(), 2, y, 2};
  RunLinears({&job, 1}, 0, pool);
  EXPECT_EQ(y[0], 3);
}

}  // namespace
}  // namespace ckv
