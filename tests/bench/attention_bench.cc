// Question: which fraction of one core's fp32 FMA peak does partial attention reach, and which
// fraction of DRAM bandwidth do merge and rotation?
// Bound: 2 x rows x q x (d_qk + d_v) flop against BM_FmaPeak, bytes against BM_DramRead, both
// measured here, interleaved with every case (a busy neighbour slows a machine by a third).
//
// "fraction" is the case's rate over the rate of the bound, both medians of the same process run.

#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "attention/rope.h"
#include "attention/worker_pool.h"

namespace ckv {
namespace {

double SecondsOf(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <typename Body>
double BestRate(Body body, double work) {
  double best = 0;
  for (int i = 0; i < 5; ++i) best = std::max(best, work / SecondsOf(body));
  return best;
}

// Independent chains of FMA: three times what two 4-cycle pipes need.
constexpr int kChains = 24;
constexpr int kHalfChains = 12;
constexpr int kSteps = 200'000;

__attribute__((target("avx512f"), noinline)) void FmaWide(float* out) {
  __m512 sum[kChains];
  for (__m512& value : sum) value = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(out[0]), b = _mm512_set1_ps(out[1]);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  _mm512_storeu_ps(out, sum[0]);
}

__attribute__((target("avx2,fma"), noinline)) void FmaHalf(float* out) {
  __m256 sum[kHalfChains];
  for (__m256& value : sum) value = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(out[0]), b = _mm256_set1_ps(out[1]);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kHalfChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], a, b);
  }
  for (int i = 1; i < kHalfChains; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  _mm256_storeu_ps(out, sum[0]);
}

// flop per second of one core, with the widest FMA it has.
double FmaPeak() {
  alignas(64) float out[16] = {0.5f, 0.25f};
  if (__builtin_cpu_supports("avx512f")) {
    return BestRate([&] { FmaWide(out); }, 2.0 * 16 * kChains * kSteps);
  }
  if (__builtin_cpu_supports("fma")) {
    return BestRate([&] { FmaHalf(out); }, 2.0 * 8 * kHalfChains * kSteps);
  }
  return 0;
}

// Bytes per second that one core reads of 256 MiB, eight times an L3.
double DramRead() {
  static const std::vector<uint64_t> memory(size_t{32} << 20, 1);
  return BestRate(
      [] {
        uint64_t sum[8] = {};
        for (size_t i = 0; i < memory.size(); i += 8) {
          for (size_t lane = 0; lane < 8; ++lane) sum[lane] += memory[i + lane];
        }
        benchmark::DoNotOptimize(sum);
      },
      static_cast<double>(memory.size() * sizeof(uint64_t)));
}

std::vector<uint16_t> RandomBf16(size_t count) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  // A pool of values: drawing 32768 x 576 of them one by one takes a second.
  std::vector<uint16_t> pool(4099), values(count);
  for (uint16_t& value : pool) value = Bf16FromFloat(normal(rng));
  for (size_t i = 0; i < count; ++i) values[i] = pool[(i + i / 576 * 31) % pool.size()];
  return values;
}

constexpr AttentionShape kShape = {576, 512, 64, RowDtype::kBf16, 0.1147f};

void BM_FmaPeak(benchmark::State& state) {
  double peak = 0;
  for (auto _ : state) peak = FmaPeak();
  state.counters["GFLOP/s"] = peak / 1e9;
}
BENCHMARK(BM_FmaPeak)->Iterations(1)->Unit(benchmark::kMillisecond);

void BM_DramRead(benchmark::State& state) {
  double rate = 0;
  for (auto _ : state) rate = DramRead();
  state.counters["GB/s"] = rate / 1e9;
}
BENCHMARK(BM_DramRead)->Iterations(1)->Unit(benchmark::kMillisecond);

// Runs `piece` and reports the fraction of peak over all threads.
void RunPiece(benchmark::State& state, const AttentionPiece& piece, uint32_t attended,
              uint32_t threads) {
  WorkerPool pool(threads);
  const double flop = 2.0 * attended * piece.q.count * (kShape.d_qk + kShape.d_v);
  const double peak = FmaPeak() * threads;
  std::vector<double> rates;
  for (auto _ : state) {
    rates.push_back(flop / SecondsOf([&] { AttendPartials(kShape, {&piece, 1}, pool); }));
  }
  std::sort(rates.begin(), rates.end());
  const double peak_after = FmaPeak() * threads;
  state.counters["fraction"] = rates[rates.size() / 2] / std::max(peak, peak_after);
  state.counters["fraction_best"] = rates.back() / std::max(peak, peak_after);
  state.SetLabel(std::string(KernelTarget()));
}

struct Output {
  explicit Output(uint32_t count) : o(size_t{count} * kShape.d_v), m(count), l(count) {}
  PartialView view() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  std::vector<float> o, m, l;
};

void BM_Dense(benchmark::State& state) {
  const uint32_t query_count = static_cast<uint32_t>(state.range(0));
  const uint32_t row_count = static_cast<uint32_t>(state.range(1));
  const auto q = RandomBf16(size_t{query_count} * 576), rows = RandomBf16(size_t{row_count} * 576);
  Output out(query_count);
  AttentionPiece piece;
  piece.q = {q.data(), query_count, 576};
  piece.rows = {reinterpret_cast<const std::byte*>(rows.data()), row_count, 1152};
  piece.out = out.view();
  RunPiece(state, piece, row_count, static_cast<uint32_t>(state.range(2)));
}
BENCHMARK(BM_Dense)
    ->ArgNames({"q", "rows", "threads"})
    ->ArgsProduct({{1, 16, 64, 128, 1024}, {2048}, {1}})
    ->Args({16, 32768, 1})
    ->Args({128, 32768, 1})
    ->Args({16, 2048, 2})
    ->Args({128, 2048, 2})
    ->MinTime(1.0)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// 2048 of 32768 rows, scattered: the same flop as dense over 2048, plus the gather.
void BM_Selected(benchmark::State& state) {
  const uint32_t query_count = static_cast<uint32_t>(state.range(0));
  const uint32_t row_count = 32768, k = 2048;
  const auto q = RandomBf16(size_t{query_count} * 576), rows = RandomBf16(size_t{row_count} * 576);
  std::vector<int32_t> indices(row_count);
  for (uint32_t i = 0; i < row_count; ++i) indices[i] = static_cast<int32_t>(i);
  std::shuffle(indices.begin(), indices.end(), std::mt19937(3));
  Output out(query_count);
  AttentionPiece piece;
  piece.q = {q.data(), query_count, 576};
  piece.rows = {reinterpret_cast<const std::byte*>(rows.data()), row_count, 1152};
  piece.selection = {indices.data(), k, query_count};
  piece.out = out.view();
  RunPiece(state, piece, k, 1);
}
BENCHMARK(BM_Selected)
    ->ArgName("q")
    ->Arg(16)
    ->Arg(128)
    ->MinTime(1.0)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void ReportBytes(benchmark::State& state, std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  state.counters["GB/s"] = rates[rates.size() / 2] / 1e9;
  state.counters["fraction"] = rates[rates.size() / 2] / DramRead();
}

// Eight parts of 1024 rows: 16.8 MB of o read (f32), more than an L2.
void BM_Merge(benchmark::State& state) {
  const uint32_t row_count = static_cast<uint32_t>(state.range(0)), part_count = 8;
  std::vector<Output> parts(part_count, Output(row_count));
  std::vector<ConstPartialView> views;
  for (Output& part : parts) {
    std::fill(part.o.begin(), part.o.end(), 0.5f);
    std::fill(part.l.begin(), part.l.end(), 3.0f);
    views.push_back(part.view());
  }
  Output out(row_count);
  const double bytes = 4.0 * part_count * row_count * kShape.d_v;
  std::vector<double> rates;
  for (auto _ : state) {
    rates.push_back(bytes /
                    SecondsOf([&] { MergePartials(views, row_count, kShape.d_v, out.view()); }));
  }
  ReportBytes(state, std::move(rates));
}
BENCHMARK(BM_Merge)->ArgName("q")->Arg(16)->Arg(128)->Arg(1024)->UseRealTime();

// The bands of one layer of a 2048-token chunk, in place: 2048 x 128 B read and written, but whole
// cache lines of 1152-byte rows, so bytes count twice 2048 x 128.
void BM_Rotate(benchmark::State& state) {
  const auto style = static_cast<RopeStyle>(state.range(0));
  auto rows = RandomBf16(size_t{2048} * 576);
  const RopeRotation rotation({style, 1e4, std::nullopt}, 64, 1);
  std::vector<double> rates;
  for (auto _ : state) {
    rates.push_back(2.0 * 2048 * 128 /
                    SecondsOf([&] { RotateBandsBf16(rotation, rows.data(), 2048, 576, 576); }));
  }
  ReportBytes(state, std::move(rates));
}
BENCHMARK(BM_Rotate)
    ->ArgName("style")
    ->Arg(static_cast<int>(RopeStyle::kInterleaved))
    ->Arg(static_cast<int>(RopeStyle::kHalfSplit))
    ->UseRealTime();

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
