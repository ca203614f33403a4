// Question: what does planning a corpus of a million chunks take, and how far from the least are
// its moves; how many cuts does an edit of one character leave? Bounds: 65,536 groups x 16 holders
// are a million logarithms, 20 ms; the rest is making a million lists.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "store/corpus/cutter.h"
#include "store/corpus/partition.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

Corpus MillionChunks() {
  Corpus corpus;
  corpus.name = "million";
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  std::mt19937_64 random(1);
  corpus.chunks.resize(1'000'000);
  for (ChunkPlacement& chunk : corpus.chunks) {
    for (size_t at = 0; at < 32; at += 8) {
      const uint64_t part = random();
      std::memcpy(chunk.id.bytes.data() + at, &part, 8);
    }
    chunk.token_count = 64;
    chunk.set_holders({{"h0"}});
  }
  return corpus;
}

// From 16 holders to 17.
void BM_PlanMillion(benchmark::State& state) {
  Corpus corpus = MillionChunks();
  std::vector<WeightedHolder> targets;
  for (int i = 0; i < 16; ++i) targets.push_back({{"h" + std::to_string(i)}, 1});
  const auto first = *PlanPartition(corpus, PartitionPolicy::kHash, targets, 1);
  for (size_t i = 0; i < corpus.chunks.size(); ++i) corpus.chunks[i].set_holders(first.holders[i]);
  targets.push_back({{"h16"}, 1});
  for (auto _ : state) {
    const Instant begin = Clock::Real()->Now();
    const auto plan = *PlanPartition(corpus, PartitionPolicy::kHash, targets, 1);
    state.counters["plan_s"] = double((Clock::Real()->Now() - begin).count()) / 1e9;
    state.counters["over_least"] = double(plan.copies.size()) / (1e6 / 17);
  }
}
BENCHMARK(BM_PlanMillion)->Iterations(1)->Unit(benchmark::kMillisecond);

// The worst of 100 edits of a text of 1 MB: the share of cuts that stay.
void BM_EditedCuts(benchmark::State& state) {
  std::mt19937 random(2);
  std::vector<int32_t> text(1'000'000);
  for (int32_t& letter : text)
    letter = 'a' + static_cast<int32_t>(std::min(random() % 26, random() % 26));
  const CutSizes sizes;
  double worst = 1;
  for (auto _ : state) {
    const auto before = CutByContent(text, sizes);
    for (int i = 0; i < 100; ++i) {
      std::vector<int32_t> edited = text;
      const auto at = static_cast<uint32_t>(random() % text.size());
      edited.insert(edited.begin() + at, 'x');
      std::set<uint32_t> cuts;
      for (const TokenRange& range : CutByContent(edited, sizes))
        cuts.insert(range.end > at ? range.end - 1 : range.end);
      const auto kept = std::count_if(before.begin(), before.end(), [&](const TokenRange& range) {
        return cuts.contains(range.end);
      });
      worst = std::min(worst, double(kept) / double(before.size()));
    }
  }
  state.counters["kept_percent"] = 100 * worst;
}
BENCHMARK(BM_EditedCuts)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
