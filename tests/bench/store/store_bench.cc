// Question: what does naming a chunk cost a holder per request? Bound: a pin and its release are
// two atomic operations on one cold cache line (about 100 ns), a look-up by id takes a lock and two
// or three such lines more; against a round trip of 7 us for 16 query rows.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "store/formats/import.h"
#include "store/memory/chunk_table.h"

namespace ckv {
namespace {

constexpr uint32_t kChunkCount = 100'000;

// A table of as many one-token chunks, the smallest rows there are: only the look-up is measured.
struct FullTable {
  FullTable() {
    geometry.model = "bench";
    geometry.layers = 1;
    geometry.d_qk = 2;
    geometry.d_v = 2;
    geometry.rope.style = RopeStyle::kNone;
    geometry.softmax_scale = 1;
    const std::vector<std::byte> row(geometry.row_bytes());
    const auto rows = [&row](uint32_t) { return std::span(row); };
    for (uint32_t i = 0; i < kChunkCount; ++i) {
      const int32_t token = static_cast<int32_t>(i);
      const ChunkInfo info = DescribeChunk(geometry, {}, 0, {&token, 1}, {0, 1}, rows);
      auto writer = table.Begin(info, geometry);
      CKV_CHECK(writer.ok() && writer->Write(0, 0, row).ok());
      auto chunk = (*std::move(writer)).Finish();
      CKV_CHECK(chunk.ok() && table.Insert(*std::move(chunk)).ok());
      ids.push_back(info.id);
      locators.push_back(*table.Find(info.id, geometry));
    }
    interned = table.geometries().Find(geometry);
    // In an order that the hardware cannot guess; the same for ids and locators.
    std::mt19937 rng(1);
    std::shuffle(ids.begin(), ids.end(), rng);
    std::shuffle(locators.begin(), locators.end(), rng);
  }

  Geometry geometry;
  std::unique_ptr<Arena> arena = *Arena::Create(size_t{kChunkCount} * Arena::kAlignment);
  ChunkTable table{arena.get(), kChunkCount};
  const Geometry* interned = nullptr;  // the table's copy
  std::vector<ChunkId> ids;
  std::vector<ChunkLocator> locators;
};

FullTable& Full() {
  static FullTable full;
  return full;
}

// What a request pays: its handle is a locator already.
void BM_PinByLocator(benchmark::State& state) {
  FullTable& full = Full();
  size_t i = static_cast<size_t>(state.thread_index()) * 7919;
  for (auto _ : state) {
    const auto pin = full.table.Pin(full.locators[i++ % kChunkCount]);
    benchmark::DoNotOptimize(&pin->chunk());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_PinByLocator)->Threads(1)->Threads(2)->UseRealTime();

// What resolving a chunk pays: the hash look-up as well.
void BM_PinById(benchmark::State& state) {
  FullTable& full = Full();
  size_t i = static_cast<size_t>(state.thread_index()) * 7919;
  for (auto _ : state) {
    const auto pin = full.table.Pin(full.ids[i++ % kChunkCount], *full.interned);
    benchmark::DoNotOptimize(&pin->chunk());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_PinById)->Threads(1)->Threads(2)->UseRealTime();

// What a page of a list holds the lock for: pins wait as long.
void BM_ListPage(benchmark::State& state) {
  FullTable& full = Full();
  size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(full.table.List(full.ids[i++ % kChunkCount], 100));
  }
}
BENCHMARK(BM_ListPage);

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
