// Question: what does the seam cost? An operation of this processor's backend, with the Wait that
// follows it, against the function behind it.
// Bound: the function. "ratio" is the function's time over the operation's, "more_ns" what the
// operation takes longer; both are medians over pairs of neighbouring samples.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "attention/backend.h"
#include "attention/worker_pool.h"
#include "proto/base/status.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_case.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {
namespace {

// A sample takes some 100 us, so that reading the clock does not count.
constexpr double kSampleSeconds = 1e-4;

template <typename Function, typename Operation>
void Compare(benchmark::State& state, Function function, Operation operation) {
  const auto wait = [&](const absl::Status& status, ComputeStream& stream) {
    CKV_CHECK(status.ok() && stream.Wait().ok());
  };
  const auto stream = *Backend::Cpu()->NewStream(/*thread_count=*/1);
  for (int i = 0; i < 100; ++i) function();  // warm
  const double once = SecondsOf(function);
  const auto calls = static_cast<uint32_t>(1 + kSampleSeconds / once);
  const auto sample = [&](auto call) {
    return SecondsOf([&] {
             for (uint32_t i = 0; i < calls; ++i) call();
           }) /
           calls;
  };
  const auto through = [&] { return sample([&] { wait(operation(*stream), *stream); }); };
  const auto direct = [&] { return sample(function); };
  std::vector<double> ratios, more, times;
  bool direct_first = true;
  for (auto _ : state) {
    const double before = direct_first ? direct() : 0;
    const double operation_s = through();
    const double function_s = direct_first ? before : direct();
    ratios.push_back(function_s / operation_s);
    more.push_back((operation_s - function_s) * 1e9);
    times.push_back(function_s * 1e9);
    direct_first = !direct_first;
  }
  state.counters["ratio"] = Median(ratios);
  state.counters["more_ns"] = Median(more);
  state.counters["function_ns"] = Median(times);
}

void BM_SeamAttend(benchmark::State& state) {
  const Case c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const std::vector<AttentionPiece> pieces(static_cast<size_t>(state.range(2)), c.piece);
  WorkerPool pool(1);
  Compare(
      state, [&] { AttendPartials(c.shape, pieces, pool); },
      [&](ComputeStream& stream) {
        return stream.backend().AttendPartials(c.shape, pieces, stream);
      });
}
// The least call there is, one decoded token over a chunk, and 64 requests at once.
BENCHMARK(BM_SeamAttend)
    ->ArgNames({"q", "rows", "pieces"})
    ->Args({1, 1, 1})
    ->Args({1, 1, 64})
    ->Args({16, 2048, 1})
    ->Iterations(400)
    ->Unit(benchmark::kMicrosecond);

void BM_SeamMerge(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const auto part_count = static_cast<size_t>(state.range(1));
  Output part(rows), sum(rows);
  std::fill(part.m.begin(), part.m.end(), 1.0f);
  std::fill(part.l.begin(), part.l.end(), 3.0f);
  const std::vector<ConstPartialView> parts(part_count, part.view());
  std::vector<uint8_t> levels(part_count);
  std::iota(levels.begin(), levels.end(), uint8_t{0});
  MergeJob job;
  job.parts = parts;
  job.levels = levels;
  job.row_count = rows;
  job.d_v = kValueWidth;
  job.out = sum.view();
  Compare(
      state, [&] { MergeTree(parts, levels, rows, kValueWidth, sum.view()); },
      [&](ComputeStream& stream) {
        return stream.backend().Merge({&job, 1}, stream);
      });
}
BENCHMARK(BM_SeamMerge)
    ->ArgNames({"q", "parts"})
    ->Args({1, 1})
    ->Args({16, 2})
    ->Args({16, 8})
    ->Iterations(400)
    ->Unit(benchmark::kMicrosecond);

void BM_SeamRotate(benchmark::State& state) {
  const auto count = static_cast<uint32_t>(state.range(0));
  const RopeRotation rotation(RopeParams(), 64, 1000);
  const std::vector<uint16_t> from = RandomBf16(size_t{count} * kWidth);
  std::vector<uint16_t> to(from.size());
  const QueryView q = {from.data(), count, kWidth};
  auto* const bytes = reinterpret_cast<std::byte*>(to.data());
  Compare(
      state,
      [&] { test::CopyRotatedBf16(rotation, from.data(), kWidth, to.data(), count, kWidth); },
      [&](ComputeStream& stream) {
        return stream.backend().Rotate(rotation, q.Bytes(), kWidth * 2, {bytes}, stream);
      });
}
BENCHMARK(BM_SeamRotate)
    ->ArgName("rows")
    ->Arg(1)
    ->Arg(16)
    ->Iterations(400)
    ->Unit(benchmark::kMicrosecond);

void BM_SeamScatter(benchmark::State& state) {
  const auto count = static_cast<uint32_t>(state.range(0));
  constexpr uint32_t kBlockRows = 64;
  const RopeRotation rotation(RopeParams(), 64, 1000);
  const std::vector<uint16_t> from = RandomBf16(size_t{count} * kWidth);
  std::vector<std::byte> layer(size_t{2} * kBlockRows * kWidth * 2);
  const std::vector<uint32_t> table = {1, 0};
  const RowView rows = QueryView{from.data(), count, kWidth}.Bytes();
  const PagedPlace to = {.layer = layer, .table = table, .row_begin = 0, .block_rows = kBlockRows};
  Compare(
      state, [&] { ScatterRotatedRows(rotation, rows, kWidth * 2, to); },
      [&](ComputeStream& stream) {
        return stream.backend().Scatter(rotation, rows, kWidth * 2, to, stream);
      });
}
BENCHMARK(BM_SeamScatter)
    ->ArgName("rows")
    ->Arg(1)
    ->Arg(128)
    ->Iterations(400)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
