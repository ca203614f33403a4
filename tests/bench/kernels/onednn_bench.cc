// Question: is a fused kernel worth having over the best library's parts?
// Bound: the same attention by oneDNN on one thread: rows converted from bf16 as the kernel must,
// its f32 sgemm for Q K^T, its softmax in place, its sgemm for P V. m and l, which a partial needs
// besides, are left out in the library's favour.
//
// Only with -DCKV_ONEDNN=ON (preset bench).

#include <benchmark/benchmark.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cstdint>
#include <vector>

#include "attention/bf16.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {
namespace {

void BM_AgainstOneDnn(benchmark::State& state) {
  constexpr uint32_t kRows = 2048;
  const auto q_count = static_cast<uint32_t>(state.range(0));
  const std::vector<uint16_t> q = RandomBf16(size_t{q_count} * kWidth);
  const auto rows = RandomRows(kRows, RowDtype::kBf16);
  Output out(q_count);
  AttentionPiece piece;
  piece.q = {q.data(), q_count, kWidth};
  piece.rows = {rows->bytes().data(), kRows, kWidth * 2};
  piece.out = out.view();
  const AttentionShape shape = ShapeOf(RowDtype::kBf16);
  WorkerPool pool(1);

  std::vector<float> q32(size_t{q_count} * kWidth), k32(size_t{kRows} * kWidth),
      p(size_t{q_count} * kRows), o(size_t{q_count} * kValueWidth);
  omp_set_num_threads(1);
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory::desc p_desc({q_count, kRows}, dnnl::memory::data_type::f32,
                                  dnnl::memory::format_tag::ab);
  dnnl::memory p_memory(p_desc, engine, p.data());
  const dnnl::softmax_forward softmax(dnnl::softmax_forward::primitive_desc(
      {dnnl::prop_kind::forward_inference, p_desc, /*axis=*/1}, engine));
  const auto library_attention = [&] {
    FloatsFromBf16(q.data(), q32.data(), q32.size());
    FloatsFromBf16(rows->as<uint16_t>(), k32.data(), k32.size());
    dnnl_sgemm('N', 'T', q_count, kRows, kWidth, 0.1147f, q32.data(), kWidth, k32.data(), kWidth, 0,
               p.data(), kRows);
    softmax.execute(stream, {{DNNL_ARG_SRC, p_memory}, {DNNL_ARG_DST, p_memory}});
    stream.wait();
    dnnl_sgemm('N', 'N', q_count, kValueWidth, kRows, 1, p.data(), kRows, k32.data(), kWidth, 0,
               o.data(), kValueWidth);
    benchmark::DoNotOptimize(o.data());
  };
  library_attention();
  std::vector<double> ratios;
  for (auto _ : state) {
    const double theirs = SecondsOf(library_attention);
    const double ours = SecondsOf([&] { AttendPartials(shape, {&piece, 1}, pool); });
    ratios.push_back(theirs / ours);
  }
  state.counters["ratio"] = Median(ratios);
}
BENCHMARK(BM_AgainstOneDnn)
    ->ArgName("q")
    ->Arg(1)
    ->Arg(16)
    ->Arg(64)
    ->Arg(128)
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
