// Question: does the decision fit a request's critical path? Bar: under 1 us for 8 candidates.
// Bound: some 60 floating-point operations per candidate and primitive, no memory beyond the input:
// about 200 ns. The paper's predicate is "evaluated in microseconds" (arXiv:2606.01502 section
// 5.1).

#include <vector>

#include "benchmark/benchmark.h"
#include "client/cost/predicate.h"
#include "client/cost/what_if.h"
#include "tests/support/named_geometry.h"

namespace ckv::bench {
namespace {

// Replicas of one chunk, each with measured constants and a reported queue, so that every term is
// computed.
DecisionInput InputOf(int64_t candidates) {
  DecisionInput input;
  input.geometry = *NamedGeometry("deepseek-v3");
  input.tokens = 2048;
  input.query_rows = 1024;  // several frames, so the pipeline is computed
  input.steps = 4;
  input.cache_room_tokens = 1024;
  input.eviction = Eviction{1 << 20, 0.5};
  input.here.merge_per_row_us = 0.1;
  input.here.splice_per_token_layer_us = 0.05;
  input.here.splice_per_layer_us = 100;
  input.here.attend_per_row_token_us = 1e-4;
  input.here.attend_floor = {0.06, 0.1};
  input.here.prefill_per_token_layer_us = 1.0;
  for (int64_t i = 0; i < candidates; ++i) {
    Candidate candidate;
    candidate.fabric = FabricConstants{16.0 + double(i), 25e9};
    candidate.wire_share = 0.5;
    candidate.path = PathCost{static_cast<uint32_t>(i % 4), 50e9, 3, 0.2, 2};
    candidate.compute = {.base_us = 15, .per_row_token_us = 8e-5, .free_row_tokens = 1e5};
    candidate.compute.gather_factor = 1.1;
    candidate.compute.floor = {0.06, 0.1};
    candidate.compute.live = {1.1, 0.9};
    // Half of them are calibrated, so both models of a kernel's time are used.
    if (i % 2 == 1) {
      candidate.compute.curve.anchor_count = 4;
      candidate.compute.curve.anchors = {{{1, 0.1}, {16, 0.3}, {64, 1}, {256, 4}}};
      candidate.compute.curve.floor = candidate.compute.floor;
    }
    candidate.in_flight = 1;
    candidate.queue_us = 5;
    candidate.queue_requests = 1;
    input.candidates.push_back(candidate);
  }
  return input;
}

void BM_Decide(benchmark::State& state) {
  DecisionInput input = InputOf(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(input.candidates.data());
    benchmark::ClobberMemory();
    Decision decision = Decide(input);
    benchmark::DoNotOptimize(decision);
  }
}
BENCHMARK(BM_Decide)->ArgName("candidates")->Arg(1)->Arg(8);

void BM_RankCandidates(benchmark::State& state) {
  DecisionInput input = InputOf(state.range(0));
  std::vector<RankedCandidate> ranked(input.candidates.size());
  for (auto _ : state) {
    benchmark::ClobberMemory();
    benchmark::DoNotOptimize(RankCandidates(input, Primitive::kRoute, ranked));
    benchmark::DoNotOptimize(ranked.data());
  }
}
BENCHMARK(BM_RankCandidates)->ArgName("candidates")->Arg(8);

// Not on any request's path: the cost of explaining a decision.
void BM_Flips(benchmark::State& state) {
  const DecisionInput input = InputOf(8);
  for (auto _ : state) benchmark::DoNotOptimize(Flips(input));
}
BENCHMARK(BM_Flips);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
