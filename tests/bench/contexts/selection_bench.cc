// Question: does a selection cost the requester more if its corpus is larger?
// Bound: 2,048 rows in 16 touched chunks cost the same, within 15 %, in a corpus of 16, 100 and
// 10,000 chunks of 256 tokens, and at most 30 us; spread over all 10,000 chunks at most 100 us.
//
// The requester's own time: Submit, which plans, rotates and posts, and the Poll that takes the
// replies and merges them. In between it waits without polling until all replies are there. The
// holders answer with zeros, so no corpus needs its rows. Chunks are on one holder, whose answer is
// one partial; or on four, as `corpus load` places them. With four, the number of partials depends
// on which chunks were chosen, and each takes a microsecond to read from the holder's cache: those
// results are for information only.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "client/requester.h"
#include "proto/base/status.h"
#include "store/corpus/placement.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/support/fake_holder.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 256, kHeads = 16, kSelected = 2048, kTouched = 16;

Corpus BigCorpus(uint32_t chunk_count, uint32_t holder_count) {
  Corpus corpus;
  corpus.name = "big";
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  corpus.geometry.layers = 1;
  std::vector<HolderId> holders;
  for (uint32_t i = 0; i < holder_count; ++i) holders.push_back({"h" + std::to_string(i)});
  const auto placement = *PlaceChunks(chunk_count, holders, 1);
  for (uint32_t i = 0; i < chunk_count; ++i) {
    ChunkPlacement chunk;
    for (uint32_t byte = 0; byte < 4; ++byte) chunk.id.bytes[byte] = uint8_t(i >> (8 * byte));
    chunk.id.bytes[31] = 1;
    chunk.token_count = kTokens;
    chunk.position = uint64_t{i} * kTokens;
    chunk.set_holders(placement[i]);
    corpus.chunks.push_back(std::move(chunk));
  }
  return corpus;
}

// Indices in an order like that of an indexer's scores: any.
std::vector<int32_t> Choose(uint32_t chunk_count, uint32_t touched, std::mt19937& rng) {
  std::vector<int32_t> chunks(chunk_count);
  for (uint32_t i = 0; i < chunk_count; ++i) chunks[i] = int32_t(i);
  std::shuffle(chunks.begin(), chunks.end(), rng);
  std::vector<int32_t> indices;
  for (uint32_t i = 0; i < kSelected; ++i)
    indices.push_back(chunks[i % touched] * int32_t(kTokens) + int32_t(rng() % kTokens));
  std::shuffle(indices.begin(), indices.end(), rng);
  return indices;
}

// Calls of one context with a new choice each, as every decode step has.
class SelectionCalls {
 public:
  SelectionCalls(Requester& requester, const std::atomic<uint32_t>& answered,
                 const std::shared_ptr<const Corpus>& corpus, uint32_t touched)
      : requester_(requester), answered_(answered) {
    const ContextPart part = {corpus, {}};
    context_ = *requester.Open({.parts = {&part, 1}}, kInstantMax);
    const auto chunk_count = static_cast<uint32_t>(corpus->chunks.size());
    for (int i = 0; i < 64; ++i) choices_.push_back(Choose(chunk_count, touched, rng_));
    q_ = test::RandomBf16(size_t{kHeads} * context_.geometry().d_qk, rng_, 0.1f);
    o_.resize(size_t{kHeads} * context_.geometry().d_v);
    Run();
    submit_us_.clear(), merge_us_.clear(), own_us_.clear();
  }

  void Run() {
    for (const std::vector<int32_t>& indices : choices_) CallOnce(indices);
  }
  void Report(benchmark::State& state) const {
    CKV_CHECK(!own_us_.empty());
    state.SetIterationTime(Quantile(own_us_, 0.5) / 1e6);
    state.counters["own_us"] = Quantile(own_us_, 0.5);
    state.counters["submit_us"] = Quantile(submit_us_, 0.5);
    state.counters["merge_us"] = Quantile(merge_us_, 0.5);
    state.counters["calls"] = double(own_us_.size());
    state.counters["frames"] = frames_;
  }

 private:
  void CallOnce(const std::vector<int32_t>& indices) {
    const Segment segment = {.row_count = kHeads,
                             .context = &context_,
                             .selection = {indices.data(), kSelected, kHeads}};
    LayerCall call;
    call.q = {q_.data(), kHeads, context_.geometry().d_qk};
    call.segments = {&segment, 1};
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    const uint32_t before = answered_;
    const Instant begin = Clock::Real()->Now();
    auto ticket =
        requester_.Submit(call, {o_.data(), m_.data(), l_.data(), PartialDtype::kF32}, &report_);
    const Duration submit = Clock::Real()->Now() - begin;
    CKV_CHECK(ticket.ok());
    // All frames fit their slots, so nothing is posted later.
    const Instant until = Clock::Real()->Now() + std::chrono::microseconds(500);
    while (Clock::Real()->Now() < until) {
    }
    frames_ = answered_ - before;
    const Instant again = Clock::Real()->Now();
    const bool done = ticket->Poll();
    const Duration merge = Clock::Real()->Now() - again;
    CKV_CHECK(done || ticket->Wait().ok());
    if (!done) return;
    submit_us_.push_back(double(submit.count()) / 1e3);
    merge_us_.push_back(double(merge.count()) / 1e3);
    own_us_.push_back(double((submit + merge).count()) / 1e3);
  }

  Requester& requester_;
  const std::atomic<uint32_t>& answered_;
  std::mt19937 rng_{5};
  Context context_;
  std::vector<std::vector<int32_t>> choices_;
  std::vector<uint16_t> q_;
  std::vector<float> o_, m_ = std::vector<float>(kHeads), l_ = std::vector<float>(kHeads);
  AttendReport report_;
  std::vector<double> submit_us_, merge_us_, own_us_;
  uint32_t frames_ = 0;
};

void BM_Selection(benchmark::State& state) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  std::atomic<uint32_t> answered{0};
  test::FakeHolder* zeros = nullptr;
  std::optional<OnCpu> cpu(kHolderCpu);
  test::FakeHolder holder(
      fabric.get(),
      BigCorpus(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(2))),
      [&](const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
        zeros->AnswerZeros(header, lane, arrival.slot);
        ++answered;
      });
  zeros = &holder;
  cpu.emplace(kDriverCpu);
  RequesterOptions options;
  options.local_cache_bytes = 0;  // the benchmark measures routed calls
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &holder, &holder);
  SelectionCalls calls(*requester, answered, *requester->Resolve("big", "", kInstantMax),
                       static_cast<uint32_t>(state.range(1)));
  for (auto _ : state) {
    for (int round = 0; round < 20; ++round) calls.Run();
    calls.Report(state);
  }
}
BENCHMARK(BM_Selection)
    ->ArgNames({"chunks", "touched", "holders"})
    ->ArgsProduct({{16, 100, 10'000}, {kTouched}, {1, 4}})
    ->ArgsProduct({{10'000}, {10'000}, {1, 4}})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
