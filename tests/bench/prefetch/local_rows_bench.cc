// Question: what do locally cached rows cost over the kernel, and what does policy auto add to a
// routed step? Bounds: a locally cached chunk is attended in its kernel's time plus 3 us; a step
// that auto routes takes 1 us more than one of policy route; an estimate takes 2 us.
//
// One holder and the requester are in this process, on shm. The kernel alone reads the same memory
// as the attend over cached rows, mapped once more. 2,048 rows take 2.4 MB, more than a cache here,
// and two copies differ by up to 8 us of 650, in either direction.

#include <memory>
#include <random>
#include <vector>

#include "attention/mla_partial.h"
#include "benchmark/benchmark.h"
#include "client/context.h"
#include "client/requester.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kRows = 16, kTokens = 2048;
constexpr int kPairs = 1500, kWarmPairs = 50;
constexpr int kPlacements = 5;

double UsOf(const auto& work) {
  const Instant begin = Clock::Real()->Now();
  work();
  return double((Clock::Real()->Now() - begin).count()) / 1e3;
}

// The medians of two tasks that take turns, and of the difference between the first and the second,
// pair by pair: a kernel's time drifts by more than the microsecond in question.
struct Compared {
  double first_us = 0, second_us = 0, over_us = 0;
};
Compared Compare(const auto& first, const auto& second) {
  std::vector<double> firsts, seconds, overs;
  for (int i = -kWarmPairs; i < kPairs; ++i) {
    // Each is first in every other pair.
    const double early = i % 2 == 0 ? UsOf(first) : UsOf(second);
    const double late = i % 2 == 0 ? UsOf(second) : UsOf(first);
    if (i < 0) continue;
    firsts.push_back(i % 2 == 0 ? early : late);
    seconds.push_back(i % 2 == 0 ? late : early);
    overs.push_back(firsts.back() - seconds.back());
  }
  return {Quantile(firsts, 0.5), Quantile(seconds, 0.5), Quantile(overs, 0.5)};
}

struct Step {
  explicit Step(const Geometry& geometry)
      : q(test::RandomBf16(size_t{kRows} * geometry.d_qk, rng, 0.1f)),
        answer(size_t{kRows} * (geometry.d_v + 2)),
        d_qk(geometry.d_qk),
        d_v(geometry.d_v) {}
  PartialView Out() {
    float* const o = answer.data();
    return {o, o + size_t{kRows} * d_v, o + size_t{kRows} * (d_v + 1), PartialDtype::kF32};
  }
  void Attend(Fleet& fleet, const Context& context) {
    const Segment segment = {.row_count = kRows, .context = &context};
    LayerCall call;
    call.q = {q.data(), kRows, d_qk};
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    CKV_CHECK(fleet.requester().Attend(call, Out()).ok());
  }

  std::mt19937 rng{2};
  std::vector<uint16_t> q;
  std::vector<float> answer;
  uint32_t d_qk, d_v;
};

Context OpenOn(Fleet& fleet, ContextPolicy policy) {
  const ContextPart part = {*fleet.requester().Resolve("bench", "", kInstantMax), {}};
  const Instant soon = Clock::Real()->Now() + std::chrono::seconds(30);
  return *fleet.requester().Open({.parts = {&part, 1}, .policy = policy}, soon);
}

// An attend over locally cached rows and its kernel, in newly allocated memory.
Compared CompareCached(uint32_t tokens) {
  Fleet fleet({.token_count = tokens,
               .layers = 27,
               .map_bytes_max = uint64_t{128} << 20,
               .local_cache_bytes = uint64_t{128} << 20});
  Step step(fleet.geometry());
  const Context cached = OpenOn(fleet, ContextPolicy::kCache);
  const absl::StatusOr<MappedChunk> mapped =
      fleet.requester().Map({.corpus = *fleet.requester().Resolve("bench", "", kInstantMax),
                             .chunk = 0,
                             .deadline = Clock::Real()->Now() + std::chrono::seconds(30)});
  CKV_CHECK(mapped.ok() && fleet.requester().Stats().local_cache.mapped_bytes > 0);
  AttentionPiece piece;
  piece.q = {step.q.data(), kRows, step.d_qk};
  piece.rows = {mapped->layer(0).data(), tokens,
                static_cast<uint32_t>(fleet.geometry().row_bytes())};
  piece.out = step.Out();
  WorkerPool pool(1);
  const auto kernel = [&] {
    AttendPartials(AttentionShape::Of(fleet.geometry()), {&piece, 1}, pool);
  };
  return Compare([&] { step.Attend(fleet, cached); }, kernel);
}

void BM_CachedChunk(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  for (auto _ : state) {
    std::vector<double> firsts, seconds, overs;
    for (int i = 0; i < kPlacements; ++i) {
      const Compared both = CompareCached(static_cast<uint32_t>(state.range(0)));
      firsts.push_back(both.first_us);
      seconds.push_back(both.second_us);
      overs.push_back(both.over_us);
    }
    state.SetIterationTime(Quantile(firsts, 0.5) / 1e6);
    state.counters["over_us"] = Quantile(overs, 0.5);
    state.counters["kernel_us"] = Quantile(seconds, 0.5);
  }
}
BENCHMARK(BM_CachedChunk)
    ->ArgName("tokens")
    ->Arg(64)
    ->Arg(2048)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// The chunk does not fit the local row cache, so auto counts, decides, and routes.
void BM_AutoStep(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = kTokens, .local_cache_bytes = 4096});
  Step step(fleet.geometry());
  const Context routed = OpenOn(fleet, ContextPolicy::kRoute);
  const Context decides = OpenOn(fleet, ContextPolicy::kAuto);
  for (auto _ : state) {
    const Compared both =
        Compare([&] { step.Attend(fleet, decides); }, [&] { step.Attend(fleet, routed); });
    state.SetIterationTime(both.first_us / 1e6);
    state.counters["over_us"] = both.over_us;
    state.counters["route_us"] = both.second_us;
  }
}
BENCHMARK(BM_AutoStep)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

// The time of an estimate for one group of chunks, from constants that Explain has measured.
void BM_Quote(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = kTokens, .local_cache_bytes = uint64_t{128} << 20});
  const std::shared_ptr<const Corpus> corpus = *fleet.requester().Resolve("bench", "", kInstantMax);
  ExplainCall explain;
  explain.corpus = corpus;
  explain.query_rows = kRows;
  explain.deadline = Clock::Real()->Now() + std::chrono::seconds(30);
  CKV_CHECK(fleet.requester().Explain(explain).ok());
  EstimateCall call;
  call.corpus = corpus;
  call.query_rows = kRows;
  for (auto _ : state) {
    const auto estimates = fleet.requester().Estimate(call);
    CKV_CHECK(estimates.ok() && estimates->front().decision.choice.has_value());
  }
}
BENCHMARK(BM_Quote)->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
