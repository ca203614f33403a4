// Goal: scores are within their bound of fp64, and depend on nothing but the query and the key.
// Method: random shapes, types and numbers of keys against sums in fp64, on every kernel target.

#include "attention/score/index_scores.h"

#include <cmath>
#include <random>

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "gtest/gtest.h"
#include "tests/attention/each_target.h"
#include "tests/support/random_rows.h"

namespace ckv {
namespace {

// Queries and keys of a shape.
struct Index {
  Index(const IndexShape& of, uint32_t tokens, uint32_t key_count, uint32_t seed)
      : shape(of), rng(seed) {
    keys = test::RandomIndexKeys(shape, key_count, rng);
    q16 = test::RandomBf16(size_t{tokens} * shape.heads * shape.dim, rng);
    for (const uint16_t value : q16) q8.push_back(E4m3FromFloat(FloatFromBf16(value)));
    std::uniform_real_distribution<float> weight(-1, 1);
    weights.resize(size_t{tokens} * shape.heads);
    for (float& w : weights) w = weight(rng);
    queries = {IndexQueryDtype::kFp8, reinterpret_cast<const std::byte*>(q8.data()), weights.data(),
               tokens};
  }
  void UseBf16() {
    queries.dtype = IndexQueryDtype::kBf16;
    queries.q = reinterpret_cast<const std::byte*>(q16.data());
  }
  RowView view() const {
    return {.data = reinterpret_cast<const std::byte*>(keys.data()),
            .count = static_cast<uint32_t>(keys.size() * 2 / shape.key_bytes()),
            .stride_bytes = shape.key_bytes()};
  }
  double Q(uint32_t token, uint32_t head, uint32_t d) const {
    const size_t at = (size_t{token} * shape.heads + head) * shape.dim + d;
    return queries.dtype == IndexQueryDtype::kBf16 ? FloatFromBf16(q16[at]) : FloatFromE4m3(q8[at]);
  }
  double K(uint32_t i, uint32_t d) const {
    const auto* const key = reinterpret_cast<const uint8_t*>(view().Row(i));
    if (shape.dtype == IndexDtype::kFp8) return FloatFromE4m3(key[d]);
    if (shape.dtype == IndexDtype::kInt8) return static_cast<int8_t>(key[d]);
    uint16_t bits;
    std::memcpy(&bits, key + 2 * d, sizeof(bits));
    return FloatFromBf16(bits);
  }
  double Scale(uint32_t i) const {
    float scale = 1;
    if (shape.dtype != IndexDtype::kBf16)
      std::memcpy(&scale, view().Row(i) + shape.dim, sizeof(scale));
    return double{scale} * shape.scale;
  }
  // The score in fp64, and its bound.
  std::pair<double, double> Due(uint32_t token, uint32_t i) const {
    double sum = 0, size = 0;
    for (uint32_t h = 0; h < shape.heads; ++h) {
      double dot = 0, magnitude = 0;
      for (uint32_t d = 0; d < shape.dim; ++d) {
        dot += Q(token, h, d) * K(i, d);
        magnitude += std::abs(Q(token, h, d) * K(i, d));
      }
      const double w = weights[size_t{token} * shape.heads + h];
      sum += w * std::max(0.0, dot);
      size += std::abs(w) * magnitude;
    }
    return {sum * Scale(i), size * Scale(i) * 0x1p-15};
  }

  IndexShape shape;
  std::mt19937 rng;
  std::vector<uint16_t> keys, q16;
  std::vector<uint8_t> q8;
  std::vector<float> weights;
  IndexQueryView queries;
};

const IndexShape kShapes[] = {
    {.dim = 128, .heads = 64, .dtype = IndexDtype::kFp8, .scale = 0.011f},
    {.dim = 128, .heads = 32, .dtype = IndexDtype::kBf16, .scale = 1},
    {.dim = 64, .heads = 64, .dtype = IndexDtype::kInt8, .scale = 0.5f},
    {.dim = 4, .heads = 1, .dtype = IndexDtype::kFp8, .scale = 2},
    {.dim = 20, .heads = 17, .dtype = IndexDtype::kBf16, .scale = 2},
    {.dim = 256, .heads = 128, .dtype = IndexDtype::kFp8, .scale = 0.1f},
};

TEST(IndexScores, AreWithinTheBoundOfFp64) {
  test::ForEachTarget([] {
    WorkerPool pool(1);
    IndexSearch search(&pool);
    for (const IndexShape& shape : kShapes) {
      for (const bool bf16 : {false, true}) {
        Index index(shape, /*tokens=*/2, /*key_count=*/37, /*seed=*/shape.dim);
        if (bf16) index.UseBf16();
        const IndexKeyRun run = {index.view(), 0};
        search.Run(shape, index.queries, {&run, 1}, 37);
        for (uint32_t t = 0; t < 2; ++t) {
          ASSERT_EQ(search.best(t).size(), 37u);
          for (const ScoredRow& row : search.best(t)) {
            const auto [score, bound] = index.Due(t, row.row);
            EXPECT_NEAR(row.score, score, bound) << shape.ToString() << " row " << row.row;
          }
        }
      }
    }
  });
}

// Runs of any length, at any place of a block, by any number of threads and beside other tokens.
TEST(IndexScores, DependOnTheQueryAndTheKeyAlone) {
  test::ForEachTarget([] {
    const IndexShape& shape = kShapes[0];
    Index index(shape, /*tokens=*/3, /*key_count=*/3000, /*seed=*/5);
    WorkerPool one(1), three(3);
    IndexSearch alone(&one), search(&three);
    const IndexKeyRun all = {index.view(), 100};
    search.Run(shape, index.queries, {&all, 1}, 2048);
    std::vector<IndexKeyRun> runs;
    for (uint32_t begin = 0, count = 1; begin < 3000; begin += count, count += 13) {
      count = std::min(count, 3000 - begin);
      runs.push_back({index.view().Rows(begin, count), 100 + begin});
    }
    for (uint32_t t = 0; t < 3; ++t) {
      IndexQueryView token = index.queries;
      token.q += t * token.token_bytes(shape);
      token.weights += size_t{t} * shape.heads;
      token.tokens = 1;
      alone.Run(shape, token, runs, 2048);
      ASSERT_EQ(alone.best(0).size(), 2048u);
      EXPECT_TRUE(std::ranges::equal(alone.best(0), search.best(t)));
    }
  });
}

}  // namespace
}  // namespace ckv
