// Question: what does a splice of a chunk (2048 tokens, 27 layers, 64 MB) into a paged cache cost?
// Bound: 0.7 of the rate of memcpy of the same bytes; a fetch that splices takes at most 1.15 x the
// time of one that only writes the rows. And what does the holder's gathering of slices save?
// Bound: as many transfers as the bytes need; one transfer per head and layer would be 216.
//
// Both sides of a comparison take turns, read sources of 64 MB and write to 64 MB, so neither's
// bytes are in a cache of 2 MB. The cache's blocks are in random order; the memcpy's target is one
// piece on huge pages. Rates count the payload once; a rate is one over a median time.

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "client/paged/paged_cache.h"
#include "client/paged/splice.h"
#include "client/tools/characterize/calibrate.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/floor.h"
#include "tests/support/named_geometry.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 2048;
constexpr uint32_t kLayers = 27;
constexpr Turns kTurns = {12, 1};
// Of fetches, which two processors share in: of 12 the ratio was 1.07 to 1.23 over tcp.
constexpr Turns kFetchTurns = {60, 1};

Side Timed(std::vector<double>& seconds, std::function<void()> work) {
  return {.sample =
              [&seconds, work = std::move(work)](bool counts) {
                const double taken = SecondsOf(work);
                if (counts) seconds.push_back(taken);
              },
          .drop = [&seconds](uint32_t samples) { seconds.resize(seconds.size() - samples); }};
}

Geometry BenchGeometry(RowDtype dtype) {
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.dtype = dtype;
  return geometry;
}

// A cache whose blocks are handed out in random order, as one that has been in use for long does.
std::unique_ptr<PagedCache> UsedCache(const Geometry& geometry, uint32_t block_count) {
  auto cache = *PagedCache::Create(geometry, {.block_count = block_count});
  std::vector<CacheSequenceId> sequences;
  for (uint32_t i = 0; i < block_count; ++i) {
    sequences.push_back(cache->Begin());
    auto block = *cache->Reserve(sequences.back(), kCacheBlockTokens);
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      const auto rows = block.Spans(layer, 0, kCacheBlockTokens).spans().front();
      std::memset(rows.data(), 0, rows.size());
    }
    std::move(block).Commit();
  }
  std::mt19937 rng(1);
  std::shuffle(sequences.begin(), sequences.end(), rng);
  for (const CacheSequenceId sequence : sequences) CKV_CHECK(cache->Free(sequence).ok());
  return cache;
}

void BM_Splice(benchmark::State& state) {
  const Geometry geometry =
      BenchGeometry(state.range(0) == 0 ? RowDtype::kBf16 : RowDtype::kFp8DsMla);
  const size_t layer_bytes = size_t{kTokens} * geometry.row_bytes();
  const size_t chunk_bytes = layer_bytes * kLayers;
  const OnCpu cpu(kDriverCpu);
  const Buffer source(chunk_bytes), copy_source(chunk_bytes), copy(chunk_bytes);
  const auto cache = UsedCache(geometry, kTokens / kCacheBlockTokens + 1);
  const CacheSequenceId sequence = cache->Begin();
  std::move(*cache->Reserve(sequence, 10)).Commit();  // so that runs begin inside a block
  const auto reservation = *cache->Reserve(sequence, kTokens);
  const RopeRotation rotation = SpliceRotation(geometry, state.range(1));
  const auto stream = *Backend::Cpu()->NewStream(/*thread_count=*/1);
  const auto splice = [&] {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      CKV_CHECK(Splice(rotation, geometry, source.bytes().subspan(layer * layer_bytes, layer_bytes),
                       reservation.From(layer, 0), *stream)
                    .ok());
    }
    benchmark::ClobberMemory();
  };
  const auto move = [&] {
    std::memcpy(copy.bytes().data(), copy_source.bytes().data(), chunk_bytes);
    benchmark::ClobberMemory();
  };
  for (auto _ : state) {
    std::vector<double> spliced, copied;
    TakeTurns(kTurns, {Timed(spliced, splice), Timed(copied, move)});
    const double seconds = Quantile(spliced, 0.5);
    state.SetIterationTime(seconds);
    state.counters["splice_GBps"] = double(chunk_bytes) / 1e9 / seconds;
    state.counters["memcpy_GBps"] = double(chunk_bytes) / 1e9 / Quantile(copied, 0.5);
    state.counters["ratio"] = Quantile(copied, 0.5) / seconds;
  }
}
BENCHMARK(BM_Splice)
    ->ArgNames({"fp8", "delta"})
    ->ArgsProduct({{0, 1}, {0, 4096}})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// Compared with a fetch that writes the rows in one piece, at canonical positions.
void BM_FetchInto(benchmark::State& state) {
  const auto fabric = static_cast<FabricKind>(state.range(0));
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.fabric = fabric, .token_count = kTokens, .layers = kLayers});
  const size_t row_bytes = fleet.geometry().row_bytes(), layer_bytes = kTokens * row_bytes;
  const Buffer destination(layer_bytes * kLayers);
  const auto cache = UsedCache(fleet.geometry(), kTokens / kCacheBlockTokens + 1);
  FetchCall call;
  call.corpus = *fleet.requester().Resolve("bench", "", kInstantMax);
  call.chunk_end = 1;
  call.tensor_end = kLayers;
  const auto put = [&] {
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    const absl::Status status = fleet.requester().Fetch(
        call,
        [&](const RowRun& run) {
          return destination.bytes().subspan(run.tensor * layer_bytes + run.token_begin * row_bytes,
                                             run.token_count * row_bytes);
        },
        [](const FetchedRows&) { return absl::OkStatus(); });
    CKV_CHECK(status.ok());
  };
  const auto splice = [&] {
    FetchCall moved = call;
    moved.position = 4096;
    moved.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    const CacheSequenceId sequence = cache->Begin();
    CKV_CHECK(fleet.requester().FetchInto(moved, *cache, sequence).ok());
    CKV_CHECK(cache->Free(sequence).ok());
  };
  for (auto _ : state) {
    std::vector<double> spliced, fetched;
    TakeTurns(kFetchTurns, {Timed(spliced, splice), Timed(fetched, put)});
    // Two threads on two processors, each of which is fast or slow independently: the times form
    // clusters, and a median shows only one of them.
    const double seconds = TrimmedMean(spliced), fetch_seconds = TrimmedMean(fetched);
    state.SetIterationTime(seconds);
    state.counters["fetch_us"] = fetch_seconds * 1e6;
    state.counters["over_fetch"] = seconds / fetch_seconds;
  }
}
BENCHMARK(BM_FetchInto)
    ->ArgName("fabric")
    ->Arg(static_cast<int>(FabricKind::kShm))
    ->Arg(static_cast<int>(FabricKind::kTcp))
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// A tensor-parallel rank's slice of every row, 8 heads of 16 values (256 bytes of each row) over
// all layers of a chunk: gathered by the holder, or fetched head by head and layer by layer.
void BM_FetchSlice(benchmark::State& state) {
  constexpr uint32_t kHeads = 8, kHeadBytes = 32;
  const auto fabric = static_cast<FabricKind>(state.range(0));
  const auto tokens = static_cast<uint32_t>(state.range(1));
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.fabric = fabric, .token_count = tokens, .layers = kLayers});
  FetchCall call;
  call.corpus = *fleet.requester().Resolve("bench", "", kInstantMax);
  call.chunk_end = 1;
  const auto fetch = [&](uint32_t layer_begin, uint32_t layer_end, const ColumnRange& columns) {
    call.tensor_begin = layer_begin;
    call.tensor_end = layer_end;
    call.columns = columns;
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    const absl::Status status = fleet.requester().Fetch(call, [](const FetchedRows& rows) {
      Read(rows.rows);
      return absl::OkStatus();
    });
    CKV_CHECK(status.ok());
  };
  const auto staged = [&] { fetch(0, kLayers, {0, kHeads * kHeadBytes}); };
  const auto apart = [&] {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t head = 0; head < kHeads; ++head)
        fetch(layer, layer + 1, {head * kHeadBytes, kHeadBytes});
    }
  };
  const auto transfers = [&](const auto& work) {
    const uint64_t before = fleet.holder().stats().push_count;
    work();
    return double(fleet.holder().stats().push_count - before);
  };
  state.counters["staged_transfers"] = transfers(staged);
  state.counters["apart_transfers"] = transfers(apart);
  for (auto _ : state) {
    std::vector<double> gathered, by_head;
    TakeTurns(kTurns, {Timed(gathered, staged), Timed(by_head, apart)});
    state.SetIterationTime(Quantile(gathered, 0.5));
    state.counters["apart_us"] = Quantile(by_head, 0.5) * 1e6;
    state.counters["apart_over_staged"] = Quantile(by_head, 0.5) / Quantile(gathered, 0.5);
  }
}
BENCHMARK(BM_FetchSlice)
    ->ArgNames({"fabric", "tokens"})
    ->ArgsProduct({{static_cast<int>(FabricKind::kShm), static_cast<int>(FabricKind::kTcp)},
                   {16, 256, 2048}})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
