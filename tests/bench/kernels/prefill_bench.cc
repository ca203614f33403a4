// Question: how much shorter is a prefill of the quick start's engine on the unit that multiplies
// bf16 than on the vector target?
// Bound: attention is 131,072 query rows x 4,096 rows on average x 4 layers x 2,176 flop = 4.7
// TFLOP, dense layers .1. So the gain is that of the exact kernel on 1,024 query rows, less what
// softmax, rotations and norms take.
//
// "ratio" is the median over pairs of neighbouring samples. A target that this machine lacks, or
// does not choose, has no benchmark; the context "not_here/..." contains the reason.

#include <benchmark/benchmark.h>

#include <memory>

#include <string>
#include <vector>

#include "attention/matrix/matrix_kernel.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/base/status.h"
#include "tests/bench/kernels/kernel_case.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 8192;

void Prefill(benchmark::State& state, std::string_view target) {
  const std::unique_ptr<ReferenceEngine> engine = ReferenceEngine::Create({}).value();
  std::vector<int32_t> tokens(kTokens);
  for (uint32_t i = 0; i < kTokens; ++i) tokens[i] = static_cast<int32_t>(i * 37 % 251);
  WorkerPool pool(2);
  const auto tokens_per_second = [&](std::string_view used) {
    UseTarget(used);
    const auto progress = [](uint32_t) { return absl::OkStatus(); };
    return kTokens / SecondsOf([&] { CKV_CHECK(engine->Prefill(tokens, 0, pool, progress).ok()); });
  };
  ReportRatio(
      state, [&] { return tokens_per_second(VectorTarget()); },
      [&] { return tokens_per_second(target); });
}

// Registers the benchmark of a target, or records why there is none.
void Add(const std::string& target, const matrix::UnitState& unit) {
  const std::string name = "BM_Prefill/" + target;
  const bool chosen = KernelTargets().front() == target;
  if (!chosen) {
    const std::string why = unit.usable ? "this machine is faster on another target" : unit.why_not;
    benchmark::AddCustomContext("not_here/" + name, why);
    return;
  }
  benchmark::RegisterBenchmark(name.c_str(), Prefill, target)
      ->Iterations(2)  // each of the two is first once
      ->Unit(benchmark::kSecond)
      ->UseRealTime();
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) {
  ckv::bench::Add("AMX", ckv::matrix::AmxUnit());
  ckv::bench::Add("AVX512_BF16", ckv::matrix::DotUnit());
  return ckv::bench::RunUnless("", argc, argv);
}
