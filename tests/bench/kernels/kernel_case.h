// One call of a kernel benchmark, its data, and its ratio to a floor that is measured next to it.

#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/precision.h"
#include "attention/worker_pool.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {

// Query rows over rows of one dtype, and the output.
struct Case {
  Case(uint32_t q_count, uint32_t row_count, RowDtype dtype = RowDtype::kBf16)
      : shape(ShapeOf(dtype)),
        q(RandomBf16(size_t{q_count} * kWidth)),
        rows(RandomRows(row_count, dtype)),
        out(q_count) {
    piece.q = {q.data(), q_count, kWidth};
    piece.rows = {rows->bytes().data(), row_count, RowBytes(dtype)};
    piece.out = out.view();
  }
  double Seconds(WorkerPool& pool) {
    return SecondsOf([&] { AttendPartials(shape, {&piece, 1}, pool); });
  }
  size_t row_bytes() const { return size_t{piece.rows.count} * piece.rows.stride_bytes; }
  double Flop(uint32_t attended) const {
    return 2.0 * attended * piece.q.count * (shape.d_qk + shape.d_v);
  }

  AttentionShape shape;
  std::vector<uint16_t> q;
  std::unique_ptr<Buffer> rows;
  Output out;
  AttentionPiece piece;
};

// Which sample is first alternates, so that neither always finds the other's caches.
template <typename Floor, typename Work>
void ReportRatio(benchmark::State& state, Floor floor, Work work) {
  std::vector<double> ratios, rates;
  bool floor_first = true;
  work();  // warm
  for (auto _ : state) {
    const double before = floor_first ? floor() : 0;
    const double rate = work();
    const double bound = floor_first ? before : floor();
    ratios.push_back(rate / bound);
    rates.push_back(rate);
    floor_first = !floor_first;
  }
  state.counters["ratio"] = Median(ratios);
  state.counters["rate"] = Median(rates);
  state.SetLabel(std::string(KernelTarget()));
}

// Rows that every call finds in DRAM: 12 sets of 32768 rows, taken in turn, since some machines
// have an L3 that holds several of the 37.7 MB.
class ColdRows {
 public:
  static constexpr uint32_t kRows = 32768;

  explicit ColdRows(RowDtype dtype)
      : set_bytes_(size_t{kRows} * RowBytes(dtype)), memory_(kSets * set_bytes_) {
    const auto rows = RandomRows(kRows, dtype);
    for (size_t i = 0; i < kSets; ++i) {
      std::memcpy(memory_.as<std::byte>() + i * set_bytes_, rows->bytes().data(), set_bytes_);
    }
  }
  std::span<std::byte> Next() {
    return memory_.bytes().subspan(next_++ % kSets * set_bytes_, set_bytes_);
  }
  double set_bytes() const { return static_cast<double>(set_bytes_); }

 private:
  static constexpr size_t kSets = 12;
  size_t set_bytes_;
  Buffer memory_;
  size_t next_ = 0;
};

// The best target of f32 multiply-adds. Matrix targets have figures of their own.
inline std::string_view VectorTarget() {
  for (const std::string_view target : KernelTargets()) {
    if (target != "AMX" && target != "AVX512_BF16") return target;
  }
  return "";
}

// Ends the program if this machine lacks `target`: a figure of another would be read as its own.
inline void UseTarget(std::string_view target) {
  const absl::Status forced = ForceKernelTarget(target);
  if (forced.ok()) return;
  std::fprintf(stderr, "benchmark: %s\n", std::string(forced.message()).c_str());
  std::exit(1);
}

// A case from the benchmark's arguments: query rows, rows, and the precision.
inline Case GradedCase(benchmark::State& state, RowDtype dtype = RowDtype::kBf16) {
  Case c(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)), dtype);
  c.piece.precision = static_cast<Precision>(state.range(2));
  return c;
}

// Calls per second of `target` against the vector kernel's; before(name) runs before each sample.
template <typename Before>
void ReportAgainstVectors(benchmark::State& state, std::string_view target, Case& c,
                          Before before) {
  WorkerPool pool(1);
  const auto calls_per_second = [&](std::string_view used) {
    UseTarget(used);
    before(used);
    return 1 / c.Seconds(pool);
  };
  ReportRatio(
      state, [&] { return calls_per_second(VectorTarget()); },
      [&] { return calls_per_second(target); });
  UseTarget(target);
}

// Row bytes per second against reading the rows; they are in no cache before either.
template <typename Seconds>
void ReportAgainstRead(benchmark::State& state, const Case& c, Seconds seconds) {
  const std::span<const std::byte> rows = c.rows->bytes().first(c.row_bytes());
  const auto bytes = static_cast<double>(rows.size());
  ReportRatio(
      state,
      [&] {
        Flush(rows);
        return ReadRate(rows);
      },
      [&] {
        Flush(rows);
        return bytes / seconds();
      });
}

// Runs the benchmarks, or none if the machine lacks what they need; the context "not_here" then
// contains the reason. Returns the exit status.
inline int RunUnless(const std::string& why_not, int argc, char** argv) {
  if (!why_not.empty()) benchmark::AddCustomContext("not_here", why_not);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  // A run without benchmarks writes no file, and the reason would be lost; so this one runs
  // instead.
  const auto nothing = [](benchmark::State& state) {
    while (state.KeepRunning()) continue;
  };
  benchmark::RegisterBenchmark("nothing", nothing)->Iterations(1);
  if (!why_not.empty()) benchmark::SetBenchmarkFilter("^nothing");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace ckv::bench
