// Corpora with index keys, queries over them, and the rows that one process with all keys selects.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "attention/score/index_scores.h"
#include "gtest/gtest.h"
#include "tests/support/random_rows.h"
#include "tests/support/test_fleet.h"
#include "transport/fabric.h"

namespace ckv::test {

inline constexpr uint32_t kTokenCount = 5;
inline constexpr uint32_t kHeads = 4;

// Index queries of kTokenCount tokens.
struct IndexQuery {
  IndexQuery(const IndexShape& shape, uint32_t seed, bool zeros) : rng(seed) {
    q = RandomBf16(size_t{kTokenCount} * shape.heads * shape.dim, rng);
    weights.resize(size_t{kTokenCount} * shape.heads);
    std::uniform_real_distribution<float> weight(-1, 1);
    for (float& w : weights) w = zeros ? 0 : weight(rng);
  }
  IndexQueryView View() const {
    return {IndexQueryDtype::kBf16, reinterpret_cast<const std::byte*>(q.data()), weights.data(),
            kTokenCount};
  }
  std::mt19937 rng;
  std::vector<uint16_t> q;
  std::vector<float> weights;
};

// The selected rows of all tokens, by one that has all keys.
inline std::vector<int32_t> Due(const TestCorpus& corpus, const std::vector<uint32_t>& chunks,
                                uint32_t layer, const IndexQuery& query, uint32_t k) {
  std::vector<std::byte> keys;
  for (const uint32_t chunk : chunks) {
    const auto of =
        std::as_bytes(std::span(corpus.chunks[chunk].layers[corpus.geometry.index_tensor(layer)]));
    keys.insert(keys.end(), of.begin(), of.end());
  }
  const IndexShape& shape = *corpus.geometry.index;
  WorkerPool pool(1);
  IndexSearch search(&pool);
  const IndexKeyRun run = {{.data = keys.data(),
                            .count = static_cast<uint32_t>(keys.size() / shape.key_bytes()),
                            .stride_bytes = shape.key_bytes()},
                           0};
  search.Run(shape, query.View(), {&run, 1}, k);
  std::vector<int32_t> due(size_t{kTokenCount} * k, -1);
  for (uint32_t t = 0; t < kTokenCount; ++t) {
    const auto best = search.best(t);
    const auto begin = due.begin() + static_cast<ptrdiff_t>(size_t{t} * k);
    auto end = begin;
    for (const ScoredRow& row : best) *end++ = static_cast<int32_t>(row.row);
    std::sort(begin, end);
  }
  return due;
}

struct SelectRowsTest : testing::Test {
  TestCorpus MakeCorpus(const std::vector<uint32_t>& tokens) {
    return MakeTestCorpus(WithIndex(TestGeometry()), tokens, 3);
  }
  absl::StatusOr<Context> Open(Cluster& cluster, std::span<const ChunkUse> chunks = {},
                               ContextPolicy policy = ContextPolicy::kRoute) {
    const ContextPart part = {.corpus = cluster.Resolve(), .chunks = chunks};
    return cluster.requester->Open({.parts = {&part, 1}, .policy = policy}, Soon());
  }
  // Calls `test` with the corpus at 1, 2 and 5 holders, by normal and by small lanes.
  void ForPlacements(const TestCorpus& corpus,
                     absl::FunctionRef<void(Cluster&, const Context&)> test) {
    std::mt19937 rng(1);
    for (const size_t holders : {1u, 2u, 5u}) {
      for (const LaneShape& shape : {LaneShape{}, SmallShape(2)}) {
        SCOPED_TRACE(testing::Message() << holders << " holders");
        Cluster cluster(fabric.get(), holders, shape);
        std::vector<size_t> placement;
        for (size_t i = 0; i < corpus.chunks.size(); ++i) placement.push_back(rng() % holders);
        cluster.fleet.Load("c", corpus, placement);
        const auto context = Open(cluster);
        ASSERT_TRUE(context.ok()) << context.status();
        test(cluster, *context);
      }
    }
  }
  std::vector<uint32_t> AllChunks(const TestCorpus& corpus) {
    std::vector<uint32_t> all(corpus.chunks.size());
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
};

}  // namespace ckv::test
