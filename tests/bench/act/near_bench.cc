// Question: what do near rows cost over the kernel, and what does policy auto add to a routed step?
// Bounds: a near chunk is attended in its kernel's time and 1 us; a step that auto routes takes 1
// us more than one of policy route.
//
// One holder and the requester are in this process, on shm. Sides are measured in turns.

#include <memory>
#include <random>
#include <vector>

#include "attention/mla_partial.h"
#include "benchmark/benchmark.h"
#include "client/context/context.h"
#include "client/requester.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kRows = 16, kTokens = 2048;
constexpr Turns kTurns = {.rounds = 15, .samples = 40};

class Samples {
 public:
  template <typename Work>
  Side Timed(Work work) {
    return {.sample =
                [this, work](bool counts) {
                  const Instant begin = Clock::Real()->Now();
                  work();
                  const Duration took = Clock::Real()->Now() - begin;
                  if (counts) us_.push_back(double(took.count()) / 1e3);
                },
            .drop = [this](uint32_t count) { us_.resize(us_.size() - count); }};
  }
  double median() const { return Quantile(us_, 0.5); }

 private:
  std::vector<double> us_;
};

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

void BM_NearChunk(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = kTokens, .layers = 27, .near_bytes = uint64_t{128} << 20});
  Step step(fleet.geometry());
  const Context near = OpenOn(fleet, ContextPolicy::kNear);
  const ChunkPin pin = fleet.Pin();
  AttentionPiece piece;
  piece.q = {step.q.data(), kRows, step.d_qk};
  piece.rows = {pin.chunk().layer(0).data(), kTokens,
                static_cast<uint32_t>(fleet.geometry().row_bytes())};
  piece.out = step.Out();
  WorkerPool pool(1);
  const auto kernel = [&] {
    AttendPartials(AttentionShape::Of(fleet.geometry()), {&piece, 1}, pool);
  };
  for (auto _ : state) {
    Samples attend, alone;
    TakeTurns(kTurns, {attend.Timed([&] { step.Attend(fleet, near); }), alone.Timed(kernel)});
    state.SetIterationTime(attend.median() / 1e6);
    state.counters["over_us"] = attend.median() - alone.median();
    state.counters["kernel_us"] = alone.median();
  }
}
BENCHMARK(BM_NearChunk)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

// The chunk has no room here, so auto counts and decides, and routes.
void BM_AutoStep(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = kTokens, .near_bytes = 4096});
  Step step(fleet.geometry());
  const Context routed = OpenOn(fleet, ContextPolicy::kRoute);
  const Context decides = OpenOn(fleet, ContextPolicy::kAuto);
  for (auto _ : state) {
    Samples automatic, forced;
    TakeTurns(kTurns, {automatic.Timed([&] { step.Attend(fleet, decides); }),
                       forced.Timed([&] { step.Attend(fleet, routed); })});
    state.SetIterationTime(automatic.median() / 1e6);
    state.counters["over_us"] = automatic.median() - forced.median();
    state.counters["route_us"] = forced.median();
  }
}
BENCHMARK(BM_AutoStep)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
