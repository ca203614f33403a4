// Question: how fast do rows of another process' store arrive in the caller's buffer, one layer of
// 2048 tokens (2.36 MB) and a whole chunk of 27 layers (64 MB)? Bound: on shm 0.85 of one thread's
// memcpy of the same bytes; on tcp 0.9 of plain sends as long as a reply, with the checksums that a
// requester takes. `of_bare` compares with what moves bytes and does nothing else: the better of a
// sendfile over one connection and of sends of any length over two. ckv has no sendfile, because
// the memory of a chunk may be reused while the kernel still reads it.
//
// Requester::Fetch puts each range of rows at its place in one contiguous buffer, so every check of
// the bytes and every copy on the way counts. Floors read their own source of 64 MB and write to
// the same buffer. Layers are taken in turn, so that neither side's bytes are in a cache of 2 MB.
// Fetches and each floor take turns, on two pinned CPUs, with both ends of a floor spinning. Rates
// count the payload once. A rate is one over a median time.

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/data_path/data_path_floor.h"
#include "tests/bench/floor.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 2048;
constexpr uint32_t kChunkLayers = 27;

// Some six laps around the layers, or a dozen chunks.
Turns TurnsFor(uint32_t layers) { return layers == 1 ? Turns{12, 14} : Turns{12, 1}; }

// Seconds of each sample; each takes the next layers of the chunk.
class Laps {
 public:
  explicit Laps(uint32_t layers) : layers_(layers) {}

  Side Timed(
      std::function<void(uint32_t layer)> move, std::function<void()> enter = [] {},
      std::function<void()> leave = [] {}) {
    return {.sample =
                [this, move = std::move(move)](bool counts) {
                  next_ = (next_ + layers_) % kChunkLayers;
                  const double seconds = SecondsOf([&] { move(next_); });
                  if (counts) seconds_.push_back(seconds);
                },
            .drop = [this](uint32_t samples) { seconds_.resize(seconds_.size() - samples); },
            .enter = std::move(enter),
            .leave = std::move(leave)};
  }
  double Seconds() const { return Quantile(seconds_, 0.5); }

 private:
  const uint32_t layers_;
  uint32_t next_ = 0;
  std::vector<double> seconds_;
};

struct Fetches {
  Fetches(FabricKind fabric, uint32_t layer_count)
      : layers(layer_count),
        fleet({.fabric = fabric, .token_count = kTokens, .layers = kChunkLayers}),
        layer_bytes(size_t{kTokens} * fleet.geometry().row_bytes()),
        destination(layer_bytes * kChunkLayers) {
    call.corpus = *fleet.requester().Resolve("bench", "", kInstantMax);
    call.chunk_end = 1;
  }

  std::span<std::byte> place(uint32_t layer) const {
    return destination.bytes().subspan(layer * layer_bytes, layers * layer_bytes);
  }
  void Fetch(uint32_t layer) {
    call.tensor_begin = layer;
    call.tensor_end = layer + layers;
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    const size_t row_bytes = fleet.geometry().row_bytes();
    const absl::Status status = fleet.requester().Fetch(
        call,
        [&](const RowRun& run) {
          return destination.bytes().subspan(run.tensor * layer_bytes + run.token_begin * row_bytes,
                                             run.token_count * row_bytes);
        },
        [](const FetchedRows&) { return absl::OkStatus(); });
    CKV_CHECK(status.ok());
  }

  const uint32_t layers;
  Fleet fleet;
  const size_t layer_bytes;
  Buffer destination;
  FetchCall call;
};

void Report(benchmark::State& state, const Fetches& fetches, const Laps& fetched, double floor) {
  const double gigabytes = double(fetches.layers * fetches.layer_bytes) / 1e9;
  state.SetIterationTime(fetched.Seconds());
  state.counters["fetch_GBps"] = gigabytes / fetched.Seconds();
  state.counters["floor_GBps"] = gigabytes / floor;
  state.counters["ratio"] = floor / fetched.Seconds();
}

void BM_FetchShm(benchmark::State& state) {
  const auto layers = static_cast<uint32_t>(state.range(0));
  const OnCpu cpu(kDriverCpu);
  Fetches fetches(FabricKind::kShm, layers);
  const Buffer source(fetches.layer_bytes * kChunkLayers);
  for (auto _ : state) {
    Laps fetched(layers), copied(layers);
    TakeTurns(TurnsFor(layers), {fetched.Timed([&](uint32_t layer) { fetches.Fetch(layer); }),
                                 copied.Timed([&](uint32_t layer) {
                                   const std::span<std::byte> to = fetches.place(layer);
                                   std::memcpy(to.data(),
                                               source.bytes().data() + layer * fetches.layer_bytes,
                                               to.size());
                                   benchmark::ClobberMemory();
                                 })});
    Report(state, fetches, fetched, copied.Seconds());
  }
}

void BM_FetchTcp(benchmark::State& state) {
  const auto layers = static_cast<uint32_t>(state.range(0));
  const OnCpu cpu(kDriverCpu);
  Fetches fetches(FabricKind::kTcp, layers);
  const size_t chunk_bytes = fetches.layer_bytes * kChunkLayers;
  TcpBulk sendfile(BulkKind::kSendfile, chunk_bytes);
  TcpBulk two(BulkKind::kTwoConnections, chunk_bytes);
  TcpBulk checked(BulkKind::kChecked, chunk_bytes);
  for (auto _ : state) {
    Laps fetched(layers), by_sendfile(layers), by_two(layers), by_checked(layers);
    const auto bulk = [&](TcpBulk& floor, Laps& laps) {
      return laps.Timed(
          [&](uint32_t layer) { floor.Take(layer * fetches.layer_bytes, fetches.place(layer)); },
          [&] { floor.peer().Wake(); }, [&] { floor.peer().Park(); });
    };
    TakeTurns(TurnsFor(layers),
              {fetched.Timed([&](uint32_t layer) { fetches.Fetch(layer); }),
               bulk(sendfile, by_sendfile), bulk(two, by_two), bulk(checked, by_checked)});
    Report(state, fetches, fetched, by_checked.Seconds());
    const double gigabytes = double(layers * fetches.layer_bytes) / 1e9;
    state.counters["sendfile_GBps"] = gigabytes / by_sendfile.Seconds();
    state.counters["two_GBps"] = gigabytes / by_two.Seconds();
    state.counters["of_bare"] =
        std::min(by_sendfile.Seconds(), by_two.Seconds()) / fetched.Seconds();
  }
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("layers")
      ->Arg(1)
      ->Arg(kChunkLayers)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(BM_FetchShm)->Apply(Sizes);
BENCHMARK(BM_FetchTcp)->Apply(Sizes);

}  // namespace
}  // namespace ckv::bench
