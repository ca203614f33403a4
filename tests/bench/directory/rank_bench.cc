// Question: does a ranking fit a request's critical path? Bar: at most 10 us for 64 candidates, of
// a prompt of 64 chunks. Bound: some 60 floating-point operations and one look-up of a host per
// candidate, 50 ns; one look-up and one step per candidate for each chunk, 64 * (20 + 64) ns.

#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "server/directory/ranking/load_table.h"

namespace ckv::bench {
namespace {

constexpr int kPromptChunks = 64, kChunkTokens = 512;

// Requesters on hosts of their own, with digests of 4096 chunks each. Each has two thirds of the
// prompt's chunks: the first ones, so that both ways of counting find them.
std::unique_ptr<LoadTable> TableOf(int64_t candidates, NetworkSnapshot& snapshot) {
  auto table = std::make_unique<LoadTable>(LoadTableOptions{.ttl_max = std::chrono::hours(1)});
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < candidates; ++i) {
    LoadNotice notice;
    notice.name = absl::StrFormat("engine-%04d", i);
    notice.address = absl::StrFormat("10.0.%d.%d:8000", i / 256, i % 256);
    notice.ttl = std::chrono::hours(1);
    notice.load = {.free_bytes = 1e11,
                   .queued = double(i % 7),
                   .batch = 60,
                   .batch_max = 64,
                   .iteration_base_us = 10'000,
                   .iteration_request_us = 100};
    notice.cached.emplace();
    for (int chunk = 0; chunk < kPromptChunks * 2 / 3; ++chunk) notice.cached->push_back(chunk);
    // The other chunks are of some 100,000, as in a full table.
    while (notice.cached->size() < kDigestChunkCountMax)
      notice.cached->push_back(1000 + random() % 100'000);
    CKV_CHECK(table->Report(notice).ok());
    snapshot.tier_of_host[HostOfAddress(notice.address)] = static_cast<uint32_t>(i % 4);
  }
  return table;
}

void BM_Rank(benchmark::State& state) {
  auto snapshot = std::make_shared<NetworkSnapshot>();
  for (const double gigabytes_per_s : {450.0, 12.5, 6.25, 3.125})
    snapshot->tiers.push_back({"tier", gigabytes_per_s * 1e9, 3, 0.2});
  snapshot->taken = Clock::Real()->Now();
  const std::unique_ptr<LoadTable> table = TableOf(state.range(0), *snapshot);
  FleetQuery query;
  query.request = {.tokens = kPromptChunks * kChunkTokens, .cache_bytes = 1e9};
  for (int chunk = 0; chunk < kPromptChunks; ++chunk)
    query.chunks.push_back({static_cast<ChunkPrefix>(chunk), kChunkTokens});
  query.prefix_only = state.range(1) != 0;
  query.in_flight = {0, 1, 2, 3};
  const PathsFrom from[] = {{"p", snapshot, std::chrono::hours(1)}};
  FleetRanking ranking;
  for (auto _ : state) {
    table->Rank(query, from, ranking);
    benchmark::DoNotOptimize(ranking);
  }
  constexpr int kMatched = kPromptChunks * 2 / 3;
  CKV_CHECK(ranking.requesters.back().matched_tokens == kMatched * kChunkTokens);
  CKV_CHECK(ranking.best.has_value() && ranking.requesters.back().has_path);
}
// 1024 is the most that report; a whole ranking of them has no bar.
BENCHMARK(BM_Rank)->ArgNames({"candidates", "prefix"})->ArgsProduct({{1, 64, 1024}, {0, 1}});

// The cost of a report whose digest changes by a tenth, which rankings wait for.
void BM_Report(benchmark::State& state) {
  NetworkSnapshot snapshot;
  const std::unique_ptr<LoadTable> table = TableOf(64, snapshot);
  LoadNotice notice;
  notice.name = "engine-0000";
  notice.address = "10.0.0.0:8000";
  std::vector<ChunkPrefix> cached[2];
  for (ChunkPrefix chunk = 0; chunk < kDigestChunkCountMax; ++chunk) {
    cached[0].push_back(1000 + chunk);
    cached[1].push_back(1000 + chunk + kDigestChunkCountMax / 10);
  }
  size_t round = 0;
  for (auto _ : state) {
    notice.cached = cached[++round % 2];
    CKV_CHECK(table->Report(notice).ok());
  }
}
BENCHMARK(BM_Report);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
