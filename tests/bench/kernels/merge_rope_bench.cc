// Question: do merge and rotation run at the speed of memory?
// Bound: a copy of the same number of bytes read and written, over other memory of the same run.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/merge.h"
#include "attention/rope.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {
namespace {

// Memory is taken in turn from sets that together exceed any L2, so both sides read it from L3 or
// DRAM. Partials that a fabric just delivered and chunks that are spliced are there, too.
constexpr size_t kSetBytesMin = size_t{256} << 20;

template <typename Floor, typename Work>
void ReportRatio(benchmark::State& state, Floor floor, Work work) {
  std::vector<double> ratios, rates;
  for (auto _ : state) {
    const double bound = floor();
    rates.push_back(work());
    ratios.push_back(rates.back() / bound);
  }
  state.counters["ratio"] = Median(ratios);
  state.counters["GB/s"] = Median(rates) / 1e9;
}

// `parts` parts of q rows, f32: reads parts x q x 2 KB of o, writes q x 2 KB.
void BM_Merge(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const auto part_count = static_cast<uint32_t>(state.range(1));
  const size_t o_bytes = size_t{rows} * kValueWidth * sizeof(float);
  const size_t call_bytes = o_bytes * (part_count + 1);
  const size_t sets = kSetBytesMin / call_bytes + 1;
  Buffer memory(sets * call_bytes), copy_from(sets * call_bytes / 2),
      copy_to(sets * call_bytes / 2);
  const std::vector<float> m(rows, 1.0f), l(rows, 3.0f);
  std::vector<float> out_m(rows), out_l(rows);
  size_t next = 0;
  const auto merge = [&] {
    std::byte* base = memory.as<std::byte>() + next++ % sets * call_bytes;
    std::vector<ConstPartialView> parts;
    for (uint32_t p = 0; p < part_count; ++p) {
      parts.push_back(PartialView{base + p * o_bytes, const_cast<float*>(m.data()),
                                  const_cast<float*>(l.data()), PartialDtype::kF32});
    }
    const PartialView out = {base + part_count * o_bytes, out_m.data(), out_l.data(),
                             PartialDtype::kF32};
    return static_cast<double>(call_bytes) /
           SecondsOf([&] { MergePartials(parts, rows, kValueWidth, out); });
  };
  size_t next_copy = 0;
  const auto copy = [&] {
    const size_t half = call_bytes / 2, at = next_copy++ % sets * half;
    return CopyRate(copy_to.bytes().subspan(at, half), copy_from.bytes().subspan(at, half));
  };
  ReportRatio(state, copy, merge);
}
BENCHMARK(BM_Merge)
    ->ArgNames({"q", "parts"})
    ->ArgsProduct({{128, 1024}, {2, 8}})
    ->Iterations(100)
    ->Unit(benchmark::kMicrosecond);

constexpr uint32_t kRotatedRows = 2048;
constexpr size_t kLayerBytes = size_t{kRotatedRows} * kWidth * 2;
constexpr size_t kBandBytes = 128;
constexpr size_t kLayers = kSetBytesMin / kLayerBytes;

RopeRotation Rotation(benchmark::State& state) {
  return RopeRotation({static_cast<RopeStyle>(state.range(0)), 1e4, std::nullopt}, 64, 1000);
}

// The bands of one layer of a 2048-token chunk, in place: two lines of every 18 read and written.
void BM_RotateInPlace(benchmark::State& state) {
  const RopeRotation rotation = Rotation(state);
  Buffer memory(kLayers * kLayerBytes);
  size_t next = 0;
  const auto layer = [&] {
    return memory.bytes().subspan(next++ % kLayers * kLayerBytes, kLayerBytes);
  };
  const auto turn = [&] {
    auto* rows = reinterpret_cast<uint16_t*>(layer().data());
    return 2.0 * kRotatedRows * kBandBytes /
           SecondsOf([&] { test::RotateBandsBf16(rotation, rows, kRotatedRows, kWidth, kWidth); });
  };
  // From the band of the first row on.
  const auto touch = [&] {
    return TouchRate(layer().subspan(1024), kBandBytes, size_t{kWidth} * 2);
  };
  ReportRatio(state, touch, turn);
}
BENCHMARK(BM_RotateInPlace)
    ->ArgName("style")
    ->Arg(static_cast<int>(RopeStyle::kInterleaved))
    ->Arg(static_cast<int>(RopeStyle::kHalfSplit))
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);

// Whole rows copied to where they are spliced, rotated on the way: a copy with arithmetic in it.
void BM_RotateCopy(benchmark::State& state) {
  const RopeRotation rotation = Rotation(state);
  Buffer from(kLayers * kLayerBytes), to(kLayers * kLayerBytes);
  size_t next = 0;
  const auto layer = [&](const Buffer& of) {
    return of.bytes().subspan(next % kLayers * kLayerBytes, kLayerBytes);
  };
  const auto turn = [&] {
    ++next;
    const auto* in = reinterpret_cast<const uint16_t*>(layer(from).data());
    auto* out = reinterpret_cast<uint16_t*>(layer(to).data());
    return 2.0 * kLayerBytes / SecondsOf([&] {
             test::CopyRotatedBf16(rotation, in, kWidth, out, kRotatedRows, kWidth);
           });
  };
  const auto copy = [&] {
    ++next;
    return CopyRate(layer(to), layer(from));
  };
  ReportRatio(state, copy, turn);
}
BENCHMARK(BM_RotateCopy)
    ->ArgName("style")
    ->Arg(static_cast<int>(RopeStyle::kInterleaved))
    ->Arg(static_cast<int>(RopeStyle::kHalfSplit))
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
