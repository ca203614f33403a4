// Question: how close does the kernel on the AMX tile unit get to what one core can do: the unit's
// peak with many query rows, the read rate with few?
// Bound: 2 x rows x q x (d_qk + d_v) flop, the useful ones at any precision, against a loop of the
// unit's products on operands in the first cache; row bytes against floor.h's read rate. If this
// machine has no AMX, the context "not_here" of the output contains the reason, and nothing runs.
//
// "ratio" of a case is the median over pairs of neighbouring samples; deploy/bench.sh kernels
// compares it with the bars.

#include "attention/matrix/matrix_kernel.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/precision.h"
#include "attention/worker_pool.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_case.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {
namespace {

constexpr int kExact = static_cast<int>(Precision::kExact);
constexpr int kWire = static_cast<int>(Precision::kWire);
constexpr int kFast = static_cast<int>(Precision::kFast);

// Flop per second. 30 rounds of 10 us: the unit takes some 200 us to reach its full rate.
double PeakRate() { return 1e6 * matrix::AmxRate(30); }

void BM_Matrix(benchmark::State& state) {
  Case c = GradedCase(state);
  WorkerPool pool(1);
  ReportRatio(state, PeakRate, [&] { return c.Flop(c.piece.rows.count) / c.Seconds(pool); });
}
BENCHMARK(BM_Matrix)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{16, 64, 128, 1024}, {2048}, {kExact, kWire, kFast}})
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);

// The unit is kept warm, as in a holder that computes all the time.
void BM_AgainstVectors(benchmark::State& state) {
  Case c = GradedCase(state);
  ReportAgainstVectors(state, "AMX", c, [](std::string_view target) {
    if (target == "AMX") PeakRate();
  });
}
BENCHMARK(BM_AgainstVectors)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 4, 16, 64, 128}, {2048}, {kExact}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

// Rows that are in no cache, against reading them: bytes per second.
void BM_Flushed(benchmark::State& state) {
  Case c = GradedCase(state);
  WorkerPool pool(1);
  ReportAgainstRead(state, c, [&] {
    PeakRate();
    return c.Seconds(pool);
  });
}
BENCHMARK(BM_Flushed)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 16}, {2048}, {kExact, kFast}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Flushed)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 16}, {32768}, {kExact, kFast}})
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

// Rows that are in no cache, against the vector kernel.
void BM_FlushedAgainstVectors(benchmark::State& state) {
  Case c = GradedCase(state);
  ReportAgainstVectors(state, "AMX", c, [&](std::string_view target) {
    Flush(c.rows->bytes().first(c.row_bytes()));
    if (target == "AMX") PeakRate();
  });
}
BENCHMARK(BM_FlushedAgainstVectors)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 2, 4}, {32768}, {kExact}})
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

// 2048 of 131072 rows, scattered, against 2048 rows in order; both are in no cache.
void BM_SelectedFlushed(benchmark::State& state) {
  constexpr uint32_t kLists = 16, kBudget = 2048, kRows = 131072;
  const auto q_count = static_cast<uint32_t>(state.range(0));
  Case c(q_count, kRows);
  c.piece.precision = static_cast<Precision>(state.range(1));
  const auto lists = RandomLists(kLists, kBudget, kRows);
  AttentionPiece dense = c.piece;
  dense.rows.count = kBudget;
  WorkerPool pool(1);
  uint32_t next = 0;
  const auto calls_per_second = [&](const AttentionPiece& piece) {
    PeakRate();
    return 1 / SecondsOf([&] { AttendPartials(c.shape, {&piece, 1}, pool); });
  };
  ReportRatio(
      state,
      [&] {
        Flush(c.rows->bytes().first(size_t{kBudget} * RowBytes(RowDtype::kBf16)));
        return calls_per_second(dense);
      },
      [&] {
        const std::vector<int32_t>& list = lists[next++ % kLists];
        for (const int32_t row : list) Flush(c.rows->bytes().subspan(size_t(row) * 1152, 1152));
        c.piece.selection = {list.data(), kBudget, q_count};
        return calls_per_second(c.piece);
      });
}
BENCHMARK(BM_SelectedFlushed)
    ->ArgNames({"q", "precision"})
    ->ArgsProduct({{16, 128}, {kFast}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

// fp8_ds_mla rows against bf16 rows, calls per second: 2048 warm rows, or 32768 in no cache.
void BM_MatrixFp8(benchmark::State& state) {
  Case bf16 = GradedCase(state), fp8 = GradedCase(state, RowDtype::kFp8DsMla);
  WorkerPool pool(1);
  const auto calls_per_second = [&](Case& c) {
    if (c.piece.rows.count > 2048) Flush(c.rows->bytes().first(c.row_bytes()));
    PeakRate();
    return 1 / c.Seconds(pool);
  };
  ReportRatio(
      state, [&] { return calls_per_second(bf16); }, [&] { return calls_per_second(fp8); });
}
BENCHMARK(BM_MatrixFp8)
    ->ArgNames({"q", "rows", "precision"})
    ->Args({128, 2048, kExact})
    ->Args({1, 32768, kExact})
    ->Args({16, 32768, kExact})
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

// Compares the gain of two threads over one with the gain of their peak loops. Calls are
// back to back, as a busy holder makes them: the first of each sample is not timed.
void BM_MatrixTwoThreads(benchmark::State& state) {
  Case c = GradedCase(state);
  WorkerPool one(1), two(2);
  const auto gain = [](auto&& rate_of) { return rate_of(2) / rate_of(1); };
  ReportRatio(
      state,
      [&] {
        return gain([&](uint32_t threads) {
          double rates[2] = {};
          two.Run(threads, [&](uint32_t task, uint32_t) { rates[task] = PeakRate(); });
          return rates[0] + rates[1];
        });
      },
      [&] {
        return gain([&](uint32_t threads) {
          WorkerPool& pool = threads == 2 ? two : one;
          c.Seconds(pool);
          return 1 / c.Seconds(pool);
        });
      });
}
BENCHMARK(BM_MatrixTwoThreads)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{16, 128}, {2048}, {kExact}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// Why the kernel is not on AMX, or "".
std::string WhyNotHere() {
  if (!matrix::AmxUnit().usable) return matrix::AmxUnit().why_not;
  if (KernelTargets().front() != "AMX")
    return "its loop was measured to be less than 3 times as fast as f32's";
  return "";
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) {
  return ckv::bench::RunUnless(ckv::bench::WhyNotHere(), argc, argv);
}
