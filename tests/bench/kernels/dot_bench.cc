// Question: what does the kernel on VDPBF16PS gain over the vector kernel, and how close does it
// get to what one core can do? Bound: the logits' 2 x rows x q x d_qk flop at the rate of
// VDPBF16PS, and the values' 2 x rows x q x d_v at that of f32 multiply-adds (exact) or of
// VDPBF16PS (fast), both from registers and the first cache; row bytes against floor.h's read rate.
// If this machine has no VDPBF16PS, or not at 1.5 times the f32 rate, the context "not_here" of the
// output contains the reason, and nothing runs.
//
// "ratio" of a case is the median over pairs of neighbouring samples; deploy/bench.sh kernels
// compares it with the bars.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "attention/precision.h"
#include "tests/bench/kernels/kernel_case.h"

namespace ckv::bench {
namespace {

constexpr std::string_view kTarget = "AVX512_BF16";
constexpr int kExact = static_cast<int>(Precision::kExact);
constexpr int kFast = static_cast<int>(Precision::kFast);

// Flop per second of a call at the units' rates.
double PeakRate(const Case& c, Precision precision) {
  const double dot = 1e6 * matrix::DotRate(20), f32 = 1e6 * matrix::VectorRate(20);
  const double d_qk = c.shape.d_qk, d_v = c.shape.d_v;
  return (d_qk + d_v) / (d_qk / dot + d_v / (precision == Precision::kFast ? dot : f32));
}

void BM_Dot(benchmark::State& state) {
  Case c = GradedCase(state);
  WorkerPool pool(1);
  ReportRatio(
      state, [&] { return PeakRate(c, c.piece.precision); },
      [&] { return c.Flop(c.piece.rows.count) / c.Seconds(pool); });
}
BENCHMARK(BM_Dot)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{16, 64, 128, 1024}, {2048}, {kExact, kFast}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

void BM_DotAgainstVectors(benchmark::State& state) {
  Case c = GradedCase(state);
  ReportAgainstVectors(state, kTarget, c, [](std::string_view) {});
}
BENCHMARK(BM_DotAgainstVectors)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 4, 16, 64, 128}, {2048}, {kExact, kFast}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

// Rows that are in no cache.
void BM_DotFlushedAgainstVectors(benchmark::State& state) {
  Case c = GradedCase(state);
  ReportAgainstVectors(state, kTarget, c,
                       [&](std::string_view) { Flush(c.rows->bytes().first(c.row_bytes())); });
}
BENCHMARK(BM_DotFlushedAgainstVectors)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 4, 16}, {32768}, {kExact, kFast}})
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

// Rows that are in no cache, against reading them: bytes per second.
void BM_DotFlushed(benchmark::State& state) {
  Case c = GradedCase(state);
  WorkerPool pool(1);
  ReportAgainstRead(state, c, [&] { return c.Seconds(pool); });
}
BENCHMARK(BM_DotFlushed)
    ->ArgNames({"q", "rows", "precision"})
    ->ArgsProduct({{1, 16}, {32768}, {kExact, kFast}})
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

// fp8_ds_mla rows against bf16 rows, calls per second.
void BM_DotFp8(benchmark::State& state) {
  Case bf16 = GradedCase(state), fp8 = GradedCase(state, RowDtype::kFp8DsMla);
  WorkerPool pool(1);
  const auto calls_per_second = [&](Case& c) {
    if (c.piece.rows.count > 2048) Flush(c.rows->bytes().first(c.row_bytes()));
    return 1 / c.Seconds(pool);
  };
  ReportRatio(
      state, [&] { return calls_per_second(bf16); }, [&] { return calls_per_second(fp8); });
}
BENCHMARK(BM_DotFp8)
    ->ArgNames({"q", "rows", "precision"})
    ->Args({128, 2048, kExact})
    ->Args({1, 32768, kExact})
    ->Args({16, 32768, kExact})
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

// Why the kernel is not on VDPBF16PS, or "".
std::string WhyNotHere() {
  if (!matrix::DotUnit().usable) return matrix::DotUnit().why_not;
  const std::vector<std::string_view> targets = KernelTargets();
  const auto place = [&](std::string_view target) {
    return std::find(targets.begin(), targets.end(), target) - targets.begin();
  };
  if (place(kTarget) < place(VectorTarget())) return "";
  return "VDPBF16PS was measured to be less than 1.5 times as fast as f32";
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) {
  const std::string why_not = ckv::bench::WhyNotHere();
  if (why_not.empty()) ckv::bench::UseTarget(ckv::bench::kTarget);
  return ckv::bench::RunUnless(why_not, argc, argv);
}
