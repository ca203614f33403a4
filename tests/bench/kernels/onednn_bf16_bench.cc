// Question: is the matrix kernel worth having over the best library's parts on the same unit?
// Bound: the same attention by oneDNN on one thread: its bf16 product for Q K^T, its softmax from
// f32 to bf16, its bf16 product for P V. m and l, which a partial needs besides, are left out in
// the library's favour. One bf16 term a weight, so it computes the precision "fast".
//
// Only with -DCKV_ONEDNN=ON (preset bench).

#include <benchmark/benchmark.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cstdint>
#include <vector>

#include "attention/precision.h"
#include "attention/worker_pool.h"
#include "tests/bench/floor.h"
#include "tests/bench/kernels/kernel_case.h"
#include "tests/bench/kernels/kernel_data.h"

namespace ckv::bench {
namespace {

using Type = dnnl::memory::data_type;

// Two products with a softmax between them, over the data of a case.
class LibraryAttention {
 public:
  explicit LibraryAttention(Case& c)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        logits_(size_t{c.piece.q.count} * c.piece.rows.count),
        weights_(logits_.size()),
        o_(size_t{c.piece.q.count} * kValueWidth) {
    const int64_t q = c.piece.q.count, keys = c.piece.rows.count;
    const dnnl::memory::desc queries({q, kWidth}, Type::bf16, {kWidth, 1});
    const dnnl::memory::desc keys_across({kWidth, keys}, Type::bf16, {1, kWidth});
    const dnnl::memory::desc logits({q, keys}, Type::f32, {keys, 1});
    const dnnl::memory::desc weights({q, keys}, Type::bf16, {keys, 1});
    const dnnl::memory::desc values({keys, kValueWidth}, Type::bf16, {kWidth, 1});
    const dnnl::memory::desc o({q, kValueWidth}, Type::f32, {kValueWidth, 1});
    dnnl::primitive_attr scaled;
    scaled.set_output_scales(0, {c.shape.softmax_scale});
    first_ = dnnl::matmul({{queries, keys_across, logits}, scaled, engine_});
    second_ = dnnl::matmul({{weights, values, o}, engine_});
    softmax_ = dnnl::softmax_v2_forward(
        {{dnnl::prop_kind::forward_inference, dnnl::algorithm::softmax_accurate, logits, weights,
          /*axis=*/1},
         engine_});
    const auto memory = [this](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, engine_, const_cast<void*>(data));
    };
    queries_at_ = memory(queries, c.q.data());
    keys_at_ = memory(keys_across, c.rows->bytes().data());
    logits_at_ = memory(logits, logits_.data());
    weights_at_ = memory(weights, weights_.data());
    values_at_ = memory(values, c.rows->bytes().data());
    o_at_ = memory(o, o_.data());
  }

  void Run() {
    first_.execute(
        stream_,
        {{DNNL_ARG_SRC, queries_at_}, {DNNL_ARG_WEIGHTS, keys_at_}, {DNNL_ARG_DST, logits_at_}});
    softmax_.execute(stream_, {{DNNL_ARG_SRC, logits_at_}, {DNNL_ARG_DST, weights_at_}});
    second_.execute(
        stream_,
        {{DNNL_ARG_SRC, weights_at_}, {DNNL_ARG_WEIGHTS, values_at_}, {DNNL_ARG_DST, o_at_}});
    stream_.wait();
    benchmark::DoNotOptimize(o_.data());
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<float> logits_;
  std::vector<uint16_t> weights_;
  std::vector<float> o_;
  dnnl::matmul first_, second_;
  dnnl::softmax_v2_forward softmax_;
  dnnl::memory queries_at_, keys_at_, logits_at_, weights_at_, values_at_, o_at_;
};

// Calls per second over the library's.
void BM_MatrixAgainstOneDnn(benchmark::State& state) {
  omp_set_num_threads(1);
  Case c(static_cast<uint32_t>(state.range(0)), 2048);
  c.piece.precision = static_cast<Precision>(state.range(1));
  LibraryAttention library(c);
  WorkerPool pool(1);
  library.Run();
  ReportRatio(
      state, [&] { return 1 / SecondsOf([&] { library.Run(); }); },
      [&] { return 1 / c.Seconds(pool); });
}
BENCHMARK(BM_MatrixAgainstOneDnn)
    ->ArgNames({"q", "precision"})
    ->ArgsProduct({{16, 64, 128, 1024},
                   {static_cast<int>(Precision::kExact), static_cast<int>(Precision::kFast)}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
