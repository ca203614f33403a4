// How fast one thread scores the index keys of DeepSeek-V3.2 (64 heads of 128 values, fp8).
// Bound: reading the keys once, .85 of it (tests/bench/bars.py). 16 holders of 10,000,000 tokens
// have 625,000 keys each, 82 MB: beyond the caches.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/score/index_scores.h"
#include "tests/bench/floor.h"

namespace ckv::bench {
namespace {

constexpr IndexShape kShape = {
    .dim = 128, .heads = 64, .dtype = IndexDtype::kFp8, .scale = 0.011048543f};
constexpr uint32_t kKeys = 625'000, kSelected = 2048, kChunkKeys = 2048;

void BM_Score(benchmark::State& state) {
  const auto tokens = static_cast<uint32_t>(state.range(0));
  std::mt19937 rng(1);
  const Buffer keys(size_t{kKeys} * kShape.key_bytes());
  for (uint32_t i = 0; i < kKeys; ++i) {
    std::byte* const key = keys.bytes().data() + size_t{i} * kShape.key_bytes();
    for (uint32_t d = 0; d < kShape.dim; ++d) key[d] = static_cast<std::byte>(rng() % 0x7f);
    const float scale = 0.01f;
    std::memcpy(key + kShape.dim, &scale, sizeof(scale));
  }
  std::vector<std::byte> q(size_t{tokens} * kShape.heads * kShape.dim);
  for (std::byte& value : q) value = static_cast<std::byte>(rng() & 0xbf);  // below 2
  const std::vector<float> weights(size_t{tokens} * kShape.heads, 0.1f);
  const IndexQueryView queries = {IndexQueryDtype::kFp8, q.data(), weights.data(), tokens};
  std::vector<IndexKeyRun> runs;
  for (uint32_t begin = 0; begin < kKeys; begin += kChunkKeys) {
    runs.push_back({{.data = keys.bytes().data() + size_t{begin} * kShape.key_bytes(),
                     .count = std::min(kChunkKeys, kKeys - begin),
                     .stride_bytes = kShape.key_bytes()},
                    begin});
  }
  WorkerPool pool(1);
  IndexSearch search(&pool);
  std::vector<double> ratios, rates;
  for (auto _ : state) {
    const double floor = ReadRate(keys.bytes());
    const double seconds = SecondsOf([&] { search.Run(kShape, queries, runs, kSelected); });
    rates.push_back(double(keys.bytes().size()) / seconds);
    ratios.push_back(rates.back() / floor);
    benchmark::DoNotOptimize(search.best(0).data());
  }
  state.counters["of_read"] = Median(ratios);
  state.counters["GB/s"] = Median(rates) / 1e9;
  state.counters["Mkeys/s"] = Median(rates) / kShape.key_bytes() / 1e6 * tokens;
  state.SetLabel(std::string(KernelTarget()));
}
BENCHMARK(BM_Score)->ArgName("tokens")->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckv::bench

// With AMX even where attends are faster without it: scores are not.
int main(int argc, char** argv) {
  (void)ckv::ForceKernelTarget("AMX");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
