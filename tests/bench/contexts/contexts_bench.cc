// Question: what does a decode step of many sequences cost, if all of them are in one call?
// Bounds: without the holders' kernels, .6 (tcp) and .75 (shm) of 64 calls, and 1.3 x a raw
// exchange of its bytes in four frames; the caller's own rows add at most 10 % to the longer of
// routed and own attention; the fixed tree over 16 chunks costs 1.05 x one partial merged in turn.
//
// Four holders and the requester are in this process, without gRPC. The requester's thread has one
// CPU, the four dispatchers share the other and sleep when they have nothing to do: spinning, they
// would take each other's time. So do the four peers of the raw exchange. Kernel time is what the
// holders counted (HolderStats::compute_ns), all of it on one CPU. Sides are measured in turns.

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "benchmark/benchmark.h"
#include "client/context.h"
#include "client/requester.h"
#include "proto/base/status.h"
#include "tests/bench/contexts/four_holders.h"
#include "tests/bench/contexts/raw_exchange.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kSequences = 64, kHeads = 16;
constexpr uint32_t kBatchTokens = 64;  // of each sequence's chunk: a kernel of 15 us
constexpr Turns kTurns = {.rounds = 15, .samples = 8};

double Us(Duration duration) { return double(duration.count()) / 1e3; }

struct Samples {
  std::vector<double> us;
  double median() const { return Quantile(us, 0.5); }
  Side Timed(std::function<double()> sample) {
    return {.sample =
                [this, sample = std::move(sample)](bool counts) {
                  const double one = sample();
                  if (counts) us.push_back(one);
                },
            .drop = [this](uint32_t count) { us.resize(us.size() - count); }};
  }
};

FabricKind KindOf(const benchmark::State& state) {
  return state.range(0) == 2 ? FabricKind::kShm : FabricKind::kTcp;
}

// 64 sequences with a context and a chunk each, 16 of them on each holder.
struct DecodeBatch {
  explicit DecodeBatch(FourHolders& fleet)
      : q(test::RandomBf16(size_t{kSequences} * kHeads * fleet.geometry().d_qk, rng, 0.1f)),
        o(size_t{kSequences} * kHeads * fleet.geometry().d_v),
        m(kSequences * kHeads),
        l(kSequences * kHeads) {
    const auto corpus = fleet.Resolve();
    contexts.reserve(kSequences);
    for (uint32_t i = 0; i < kSequences; ++i) {
      const ChunkUse use = {i, 0};
      const ContextPart part = {corpus, {&use, 1}};
      contexts.push_back(*fleet.requester().Open({.parts = {&part, 1}}, kInstantMax));
      segments.push_back(
          {.row_begin = i * kHeads, .row_count = kHeads, .context = &contexts.back()});
    }
    call.q = {q.data(), kSequences * kHeads, fleet.geometry().d_qk};
    call.segments = segments;
    call.wire = PartialDtype::kF32;
  }
  PartialView Out(uint32_t row = 0) {
    const size_t d_v = o.size() / m.size();
    return {o.data() + row * d_v, m.data() + row, l.data() + row, PartialDtype::kF32};
  }

  std::mt19937 rng{2};
  std::vector<uint16_t> q;
  std::vector<float> o, m, l;
  std::vector<Context> contexts;
  std::vector<Segment> segments;
  LayerCall call;
};

void BM_Batch(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  FourHolders fleet(KindOf(state), std::vector<uint32_t>(kSequences, kBatchTokens),
                    /*run=*/kSequences / 4);
  DecodeBatch batch(fleet);
  AttendReport report;
  // Without the kernels.
  const auto beside = [&](auto&& work) {
    const uint64_t kernels = fleet.ComputeNs();
    const Instant begin = Clock::Real()->Now();
    work();
    const Duration all = Clock::Real()->Now() - begin;
    return Us(all) - double(fleet.ComputeNs() - kernels) / 1e3;
  };
  const auto deadline = [] { return Clock::Real()->Now() + std::chrono::seconds(10); };
  const auto together = [&] {
    batch.call.deadline = deadline();
    CKV_CHECK(fleet.requester().Attend(batch.call, batch.Out(), &report).ok());
  };
  const auto one_by_one = [&] {
    for (uint32_t i = 0; i < kSequences; ++i) {
      const Segment segment = {.row_count = kHeads, .context = &batch.contexts[i]};
      LayerCall call = batch.call;
      call.q.data += size_t{i} * kHeads * call.q.stride;
      call.q.count = kHeads;
      call.segments = {&segment, 1};
      call.deadline = deadline();
      CKV_CHECK(fleet.requester().Attend(call, batch.Out(i * kHeads)).ok());
    }
  };
  together();
  RawExchange raw(fleet.fabric(), 4, static_cast<uint32_t>(report.bytes_sent / 4),
                  static_cast<uint32_t>(report.bytes_received / 4));
  for (auto _ : state) {
    Samples batched, calls, floor, kernels;
    TakeTurns(kTurns, {batched.Timed([&] { return beside(together); }),
                       calls.Timed([&] { return beside(one_by_one); }),
                       floor.Timed([&] { return Us(raw.Go()); })});
    state.SetIterationTime(batched.median() / 1e6);
    state.counters["beside_us"] = batched.median();
    state.counters["calls_us"] = calls.median();
    state.counters["raw_us"] = floor.median();
    state.counters["of_calls"] = batched.median() / calls.median();
    state.counters["of_raw"] = batched.median() / floor.median();
    state.counters["holders"] = report.holder_count;
    state.counters["bytes"] = double(report.bytes_sent + report.bytes_received);
  }
}
BENCHMARK(BM_Batch)->ArgName("fabric")->Arg(2)->Arg(3)->Iterations(1)->UseManualTime()->Unit(
    benchmark::kMicrosecond);

// A routed context of 2,048 tokens and 2,048 rows of the caller's own.
void BM_OwnRows(benchmark::State& state) {
  constexpr uint32_t kTokens = 2048;
  const OnCpu cpu(kDriverCpu);
  FourHolders fleet(KindOf(state), {kTokens}, /*run=*/1);
  const Geometry& geometry = fleet.geometry();
  std::mt19937 rng(3);
  const auto q = test::RandomBf16(size_t{kHeads} * geometry.d_qk, rng, 0.1f);
  const auto rows = test::RandomBf16(size_t{kTokens} * geometry.d_qk, rng, 0.1f);
  std::vector<float> o(size_t{kHeads} * geometry.d_v), m(kHeads), l(kHeads);
  const PartialView out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  const ContextPart part = {fleet.Resolve(), {}};
  const Context context = *fleet.requester().Open({.parts = {&part, 1}}, kInstantMax);
  const OwnRows own = {
      {reinterpret_cast<const std::byte*>(rows.data()), kTokens, geometry.row_bytes()}, nullptr};
  const auto attend = [&](std::span<const OwnRows> with) {
    const Segment segment = {
        .row_count = kHeads, .context = &context, .selection = {}, .own = with};
    LayerCall call;
    call.q = {q.data(), kHeads, geometry.d_qk};
    call.segments = {&segment, 1};
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    const Instant begin = Clock::Real()->Now();
    CKV_CHECK(fleet.requester().Attend(call, out).ok());
    return Us(Clock::Real()->Now() - begin);
  };
  WorkerPool pool(1);
  const auto own_alone = [&] {
    AttentionPiece piece;
    piece.q = {q.data(), kHeads, geometry.d_qk};
    piece.rows = own.rows;
    piece.out = out;
    const Instant begin = Clock::Real()->Now();
    AttendPartials(AttentionShape::Of(geometry), {&piece, 1}, pool);
    return Us(Clock::Real()->Now() - begin);
  };
  for (auto _ : state) {
    Samples routed, alone, both;
    TakeTurns({.rounds = 15, .samples = 40},
              {routed.Timed([&] { return attend({}); }), alone.Timed(own_alone), both.Timed([&] {
                 return attend({&own, 1});
               })});
    const double longer = std::max(routed.median(), alone.median());
    state.SetIterationTime(both.median() / 1e6);
    state.counters["both_us"] = both.median();
    state.counters["route_us"] = routed.median();
    state.counters["own_us"] = alone.median();
    state.counters["added_percent"] = 100 * (both.median() / longer - 1);
  }
}
BENCHMARK(BM_OwnRows)
    ->ArgName("fabric")
    ->Arg(3)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
