// Goal: dense layers on the tile unit are exact products in f32 sums, and the unit and its models
// have equal bits. Method: random layers against float64; the kernels compared bit for bit.

#include "attention/dense.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/matrix/dense_kernel.h"
#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "tests/attention/each_target.h"

namespace ckv {
namespace {

std::vector<const matrix::DenseKernel*> Kernels() {
  std::vector<const matrix::DenseKernel*> kernels = {&matrix::PortableModelDenseKernel()};
#if defined(__x86_64__)
  if (matrix::VectorRate(1) > 0) kernels.push_back(&matrix::ModelDenseKernel());
  if (matrix::AmxUnit().usable) kernels.push_back(&matrix::AmxDenseKernel());
#endif
  return kernels;
}

struct Layer {
  uint32_t rows, input, output;
  std::vector<float> x;
  std::vector<uint16_t> weights;
  std::vector<uint32_t> packed;
};

Layer RandomLayer(uint32_t rows, uint32_t input, uint32_t output) {
  std::mt19937 rng(rows * 1000 + input);
  std::normal_distribution<float> value;
  Layer layer = {rows, input, output, {}, {}, {}};
  layer.x.resize(size_t{rows} * input);
  layer.weights.resize(size_t{input} * output);
  for (float& x : layer.x) x = value(rng);
  for (uint16_t& w : layer.weights) w = Bf16FromFloat(value(rng));
  layer.packed = PackDenseWeights(input, output, layer.weights);
  return layer;
}

constexpr float kUntouched = 7;

std::vector<float> Multiply(const matrix::DenseKernel& kernel, const Layer& layer,
                            WorkerPool& pool) {
  const size_t y_stride = layer.output + 3;
  std::vector<float> y(layer.rows * y_stride, kUntouched);
  const DenseCall call = {.x = layer.x.data(),
                          .x_stride = layer.input,
                          .rows = layer.rows,
                          .weights = layer.packed.data(),
                          .input = layer.input,
                          .output = layer.output,
                          .y = y.data(),
                          .y_stride = y_stride};
  kernel.Multiply(call, pool.scratch(0));
  return y;
}

TEST(Dense, ProductsAreExactAndAllKernelsAgree) {
  WorkerPool pool(1);
  for (const auto& [rows, input, output] : {std::array<uint32_t, 3>{1, 1, 1},
                                            {1, 256, 64},
                                            {17, 65, 33},
                                            {32, 704, 50},
                                            {16, 32, 16}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << input << " x " << output);
    const Layer layer = RandomLayer(rows, input, output);
    const std::vector<float> want = Multiply(*Kernels().front(), layer, pool);
    for (const matrix::DenseKernel* kernel : Kernels()) {
      const std::vector<float> y = Multiply(*kernel, layer, pool);
      EXPECT_EQ(std::memcmp(y.data(), want.data(), y.size() * sizeof(float)), 0);
    }
    for (uint32_t i = 0; i < rows; ++i) {
      for (uint32_t n = 0; n < output; ++n) {
        double sum = 0, size = 0;
        for (uint32_t k = 0; k < input; ++k) {
          const double product =
              double{layer.x[i * input + k]} * FloatFromBf16(layer.weights[size_t{k} * output + n]);
          sum += product;
          size += std::fabs(product);
        }
        // A sum of `input` products, two at a time for each of three terms, in f32.
        EXPECT_NEAR(want[i * (output + 3) + n], sum, 0x1p-24 * size * (input / 16.0 + 8));
      }
      for (uint32_t n = output; n < output + 3; ++n)
        EXPECT_EQ(want[i * (output + 3) + n], kUntouched);
    }
  }
}

TEST(Dense, OnlyTargetsWithTilesHaveAUnit) {
  test::ForEachTarget([] { EXPECT_EQ(HasDenseUnit(), KernelTarget().starts_with("AMX")); });
}

}  // namespace
}  // namespace ckv
