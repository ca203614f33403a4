// Question: how close does partial attention get to what one core can do: its fp32 FMA peak with
// many query rows, its memory's read bandwidth with few?
// Bound: 2 x rows x q x (d_qk + d_v) flop against floor.h's FMA rate; row bytes against its read
// rate. merge_rope_bench.cc and onednn_bench.cc have the same binary's other questions;
// matrix_bench.cc covers matrix units.
//
// "ratio" of a case is the median over pairs of neighbouring samples; deploy/bench.sh kernels
// compares it with the bars.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_case.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {
namespace {

void BM_Dense(benchmark::State& state) {
  const auto row_count = static_cast<uint32_t>(state.range(1));
  Case c(static_cast<uint32_t>(state.range(0)), row_count);
  WorkerPool pool(1);
  ReportRatio(
      state, [] { return FmaRate(); }, [&] { return c.Flop(row_count) / c.Seconds(pool); });
}
BENCHMARK(BM_Dense)
    ->ArgNames({"q", "rows"})
    ->ArgsProduct({{16, 64, 128, 1024}, {2048}})
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Dense)
    ->ArgNames({"q", "rows"})
    ->ArgsProduct({{16, 64, 128}, {32768}})
    ->Iterations(12)
    ->Unit(benchmark::kMicrosecond);

void BM_MemoryBound(benchmark::State& state) {
  const auto dtype = static_cast<RowDtype>(state.range(1));
  Case c(static_cast<uint32_t>(state.range(0)), ColdRows::kRows, dtype);
  ColdRows cold(dtype);
  WorkerPool pool(1);
  ReportRatio(
      state, [&] { return ReadRate(cold.Next()); },
      [&] {
        c.piece.rows.data = cold.Next().data();
        return cold.set_bytes() / c.Seconds(pool);
      });
}
BENCHMARK(BM_MemoryBound)
    ->ArgNames({"q", "dtype"})
    ->ArgsProduct({{1, 2, 4, 8, 12},
                   {static_cast<int>(RowDtype::kBf16), static_cast<int>(RowDtype::kFp8DsMla)}})
    ->Iterations(24)
    ->Unit(benchmark::kMicrosecond);

// fp8_ds_mla rows against bf16 rows, if memory is the limit.
void BM_Fp8MemoryBound(benchmark::State& state) {
  Case bf16(1, ColdRows::kRows), fp8(1, ColdRows::kRows, RowDtype::kFp8DsMla);
  ColdRows cold_bf16(RowDtype::kBf16), cold_fp8(RowDtype::kFp8DsMla);
  WorkerPool pool(1);
  const auto calls_per_second = [&pool](Case& c, ColdRows& cold) {
    c.piece.rows.data = cold.Next().data();
    return 1 / c.Seconds(pool);
  };
  ReportRatio(
      state, [&] { return calls_per_second(bf16, cold_bf16); },
      [&] { return calls_per_second(fp8, cold_fp8); });
}
BENCHMARK(BM_Fp8MemoryBound)->Iterations(24)->Unit(benchmark::kMicrosecond);

// k of row_count rows, scattered, against the first k rows in order: the same flop, plus the
// gather. Each call takes the next of 16 lists, as the layers of a model would.
void BM_Selected(benchmark::State& state) {
  constexpr uint32_t kLists = 16;
  const auto q_count = static_cast<uint32_t>(state.range(0));
  const auto k = static_cast<uint32_t>(state.range(1));
  const auto row_count = static_cast<uint32_t>(state.range(2));
  Case c(q_count, row_count);
  const auto lists = RandomLists(kLists, k, row_count);
  AttentionPiece dense = c.piece;
  dense.rows.count = k;
  WorkerPool pool(1);
  const double flop = c.Flop(k);
  uint32_t next = 0;
  ReportRatio(
      state, [&] { return flop / SecondsOf([&] {
                            AttendPartials(c.shape, {&dense, 1}, pool);
                          }); },
      [&] {
        c.piece.selection = {lists[next++ % kLists].data(), k, q_count};
        return flop / c.Seconds(pool);
      });
}
BENCHMARK(BM_Selected)
    ->ArgNames({"q", "k", "rows"})
    ->ArgsProduct({{1, 16, 128}, {2048}, {131072}})
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);

// 512 of 131072 rows against 512 of 2048: cost follows the budget, not the store.
void BM_SelectedStore(benchmark::State& state) {
  constexpr uint32_t kLists = 64, kBudget = 512, kSmall = 2048, kLarge = 131072;
  const auto q_count = static_cast<uint32_t>(state.range(0));
  Case c(q_count, kLarge);
  const auto small = RandomLists(kLists, kBudget, kSmall);
  const auto large = RandomLists(kLists, kBudget, kLarge);
  WorkerPool pool(1);
  const double flop = c.Flop(kBudget);
  uint32_t next = 0;
  const auto over = [&](const std::vector<std::vector<int32_t>>& lists, uint32_t row_count) {
    c.piece.rows.count = row_count;
    c.piece.selection = {lists[next++ % kLists].data(), kBudget, q_count};
    return flop / c.Seconds(pool);
  };
  ReportRatio(
      state, [&] { return over(small, kSmall); }, [&] { return over(large, kLarge); });
}
BENCHMARK(BM_SelectedStore)
    ->ArgName("q")
    ->Arg(16)
    ->Arg(128)
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);

// fp8_ds_mla rows against bf16 rows, calls per second.
void BM_Fp8(benchmark::State& state) {
  const auto q_count = static_cast<uint32_t>(state.range(0));
  const auto row_count = static_cast<uint32_t>(state.range(1));
  Case bf16(q_count, row_count), fp8(q_count, row_count, RowDtype::kFp8DsMla);
  WorkerPool pool(1);
  ReportRatio(
      state, [&] { return 1 / bf16.Seconds(pool); }, [&] { return 1 / fp8.Seconds(pool); });
}
BENCHMARK(BM_Fp8)
    ->ArgNames({"q", "rows"})
    ->ArgsProduct({{16, 64, 128}, {2048}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

// Two threads against one, calls back to back as a busy holder makes them: the first call of each
// sample is not timed. After a pause a call pays what waking a thread costs; after_pause has it.
void BM_TwoThreads(benchmark::State& state) {
  Case c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  WorkerPool one(1), two(2);
  std::vector<double> after_pause;
  const auto rate = [&](WorkerPool& pool) {
    const double first = c.Seconds(pool);
    const double second = c.Seconds(pool);
    if (pool.thread_count() > 1) after_pause.push_back(second / first);
    return 1 / second;
  };
  ReportRatio(
      state, [&] { return rate(one); }, [&] { return rate(two); });
  state.counters["after_pause"] = Median(after_pause);
}
BENCHMARK(BM_TwoThreads)
    ->ArgNames({"q", "rows"})
    ->Args({1, 32768})
    ->Args({16, 2048})
    ->Args({64, 16384})
    ->Args({128, 2048})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// Requests of q rows each over the same 2048 rows, in one call, against the same in separate calls:
// query rows per second over query rows per second. Queries and outputs are in separate memory, as
// in the slots of different lanes.
void BM_Shared(benchmark::State& state) {
  constexpr uint32_t kRows = 2048;
  const auto q_count = static_cast<uint32_t>(state.range(0));
  std::vector<std::unique_ptr<Case>> requests;
  std::vector<AttentionPiece> pieces;
  for (int64_t i = 0; i < state.range(1); ++i) {
    requests.push_back(std::make_unique<Case>(q_count, i == 0 ? kRows : 1));
    pieces.push_back(requests.back()->piece);
    pieces.back().rows = pieces.front().rows;
  }
  const AttentionShape shape = requests.front()->shape;
  const double query_rows = static_cast<double>(q_count) * static_cast<double>(pieces.size());
  WorkerPool pool(1);
  ReportRatio(
      state,
      [&] {
        return query_rows / SecondsOf([&] {
                 for (const AttentionPiece& piece : pieces) {
                   AttendPartials(shape, {&piece, 1}, pool);
                 }
               });
      },
      [&] { return query_rows / SecondsOf([&] { AttendPartials(shape, pieces, pool); }); });
}
BENCHMARK(BM_Shared)
    ->ArgNames({"q", "requests"})
    ->ArgsProduct({{1, 16}, {8}})
    ->Args({1, 4})
    ->Args({4, 3})
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);

// The AVX2 target, which machines without AVX-512 get, against what 256-bit FMA can do.
void BM_Avx2(benchmark::State& state) {
  if (!ForceKernelTarget("AVX2").ok()) {
    state.SkipWithError("this machine has no AVX2");
    return;
  }
  constexpr uint32_t kRows = 2048;
  Case c(static_cast<uint32_t>(state.range(0)), kRows);
  WorkerPool pool(1);
  ReportRatio(
      state, [] { return FmaRate(FmaWidth::kAvx2); },
      [&] { return c.Flop(kRows) / c.Seconds(pool); });
  UseTarget(VectorTarget());
}
BENCHMARK(BM_Avx2)->ArgName("q")->Arg(1)->Arg(16)->Arg(64)->Arg(128)->Iterations(40)->Unit(
    benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench

// The bars of this binary are those of the vector kernel; matrix_bench.cc has the matrix kernel's.
int main(int argc, char** argv) {
  ckv::bench::UseTarget(ckv::bench::VectorTarget());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
