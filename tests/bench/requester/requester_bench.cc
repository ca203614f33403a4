// Question: what does a routed decode add per layer and token over the kernel's own time, on shm?
// Bound: under 60 us at 16 query rows of a 2048-token DeepSeek chunk. The wire's share on this kind
// of machine is 7.3 us (16 rows x 2184 B, written once and read in place); the rest is framing, the
// merge, and one wake-up of each side.
//
// Requester and holder share a process, each with its thread. Every iteration runs the routed call
// and the same kernel in place, on the same rows, in alternating order, so that both run on the
// same machine state. kernel_us, routed_us and added_us are medians over the iterations, added_us
// of the differences of pairs. holder_us is the kernel's time that the holder's own thread
// measured, with that thread's caches. *_min are the least, undisturbed ones.

#include <algorithm>
#include <random>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "benchmark/benchmark.h"
#include "client/requester.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/floor.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 2048;
constexpr uint32_t kLayers = 4;  // taken in turn: 9.4 MB of rows, more than an L2

void BM_RoutedDecode(benchmark::State& state) {
  Fleet fleet({.token_count = kTokens,
               .layers = kLayers,
               .spin_max = std::chrono::microseconds(state.range(1)),
               .pinned = false});
  const Geometry& geometry = fleet.corpus().geometry;
  const auto rows = static_cast<uint32_t>(state.range(0));
  std::mt19937 rng(2);
  const std::vector<uint16_t> q = test::RandomBf16(size_t{rows} * geometry.d_qk, rng, 0.1f);
  std::vector<float> o(size_t{rows} * geometry.d_v), m(rows), l(rows);
  std::vector<uint16_t> o_here(o.size());
  const ChunkPin pin = fleet.Pin();
  WorkerPool pool(1);
  const AttentionShape shape = AttentionShape::Of(geometry);
  AttendCall call;
  call.corpus = *fleet.requester().Resolve("bench", "", kInstantMax);
  call.q = {q.data(), rows, geometry.d_qk};

  std::vector<double> holder_us;
  const auto run_kernel = [&](uint32_t layer) {
    AttentionPiece piece;
    piece.q = call.q;
    piece.rows = {pin.chunk().layer(layer).data(), kTokens, geometry.row_bytes()};
    piece.out = {o_here.data(), m.data(), l.data(), PartialDtype::kBf16};
    const Instant begin = Clock::Real()->Now();
    AttendPartials(shape, {&piece, 1}, pool);
    return double((Clock::Real()->Now() - begin).count()) / 1e3;
  };
  const auto run_routed = [&](uint32_t layer) {
    call.layer = layer;
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    AttendReport report;
    const Instant begin = Clock::Real()->Now();
    CKV_CHECK(fleet.requester()
                  .Attend(call, {o.data(), m.data(), l.data(), PartialDtype::kF32}, &report)
                  .ok());
    holder_us.push_back(double(report.compute_ns_max) / 1e3);
    return double((Clock::Real()->Now() - begin).count()) / 1e3;
  };
  for (uint32_t i = 0; i < 4 * kLayers; ++i) {
    run_kernel(i % kLayers);
    run_routed(i % kLayers);
  }
  std::vector<double> kernel, routed, added;
  uint32_t i = 0;
  for (auto _ : state) {
    const uint32_t layer = i / 2 % kLayers;
    const bool kernel_first = i++ % 2 == 0;
    double kernel_us = kernel_first ? run_kernel(layer) : 0;
    const double routed_us = run_routed(layer);
    if (!kernel_first) kernel_us = run_kernel(layer);
    kernel.push_back(kernel_us);
    routed.push_back(routed_us);
    added.push_back(routed_us - kernel_us);
    state.SetIterationTime(routed_us / 1e6);
  }
  state.counters["kernel_us"] = Median(kernel);
  state.counters["routed_us"] = Median(routed);
  state.counters["added_us"] = Median(added);
  state.counters["holder_us"] = Median(holder_us);
  state.counters["kernel_min"] = *std::min_element(kernel.begin(), kernel.end());
  state.counters["routed_min"] = *std::min_element(routed.begin(), routed.end());
}
// One row, one token of V2-Lite, and 16 tokens of it; a requester that sleeps after the default
// spin, and one that spins through the kernel's time.
BENCHMARK(BM_RoutedDecode)
    ->ArgNames({"rows", "spin_us"})
    ->ArgsProduct({{1, 16, 256}, {50, 2000}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(1.0)
    ->Repetitions(5);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
