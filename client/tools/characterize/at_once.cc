// Each thread makes what it needs, makes one call, and waits for the others (AtOnce). Then all call
// until the time has passed. Elbows are measured over few and many calls at once, on each lane.

#include "client/tools/characterize/at_once.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "client/paged/timing_values.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/target_calibrator.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Timed calls of each thread: at least the second number, and at most the first while time is left.
constexpr uint32_t kParallelRounds = 40, kParallelRoundsMin = 4;
// The paper's elbow of pulls ("staging") is 8, of up to 16 (arXiv:2606.01502, figure 5).
constexpr std::array<uint32_t, 5> kElbowCalls = {1, 2, 4, 8, 16};
constexpr Duration kElbowTime = std::chrono::milliseconds(100);

// The call that one thread makes in a round.
using Round = std::function<absl::Status(uint32_t round)>;

// The mean over all rounds of `key.parallel` threads, which begin together. `prepare` makes what a
// thread does; it runs before the first round is timed.
absl::StatusOr<Sample> AtOnce(const TaskContext& context, const SampleKey& key,
                              const std::function<Round(uint32_t thread)>& prepare) {
  std::vector<std::vector<double>> us(key.parallel);
  std::vector<absl::Status> statuses(key.parallel);
  std::atomic<uint32_t> waiting{key.parallel};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < key.parallel; ++thread) {
    threads.emplace_back([&, thread] {
      const Round call = prepare(thread);
      statuses[thread] = call(0);
      waiting.fetch_sub(1);
      while (waiting.load() > 0) std::this_thread::yield();
      const Instant end = context.clock->Now() + context.options->parallel_time_max;
      for (uint32_t round = 1; round <= kParallelRounds && statuses[thread].ok(); ++round) {
        if (round > kParallelRoundsMin && context.clock->Now() >= end) break;
        const Instant begin = context.clock->Now();
        statuses[thread] = call(round);
        us[thread].push_back(UsSince(begin, *context.clock));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (uint32_t thread = 0; thread < key.parallel; ++thread) {
    CKV_RETURN_IF_ERROR(statuses[thread]);
    all.insert(all.end(), us[thread].begin(), us[thread].end());
  }
  Sample sample = {
      .key = key, .runs = static_cast<uint32_t>(all.size()), .spread = QuartileRatio(all)};
  sample.error_us = TrimmedMeanError(all);
  sample.us = TrimmedMean(std::move(all));
  return sample;
}

}  // namespace

RepeatedRoute::RepeatedRoute(const TaskContext& context, const CharacterizedLane& lane,
                             std::shared_ptr<const Corpus> corpus, std::vector<ChunkUse> chunks,
                             uint32_t rows, std::span<const int32_t> selection)
    : context_(context),
      requester_(*lane.requester),
      chunks_(std::move(chunks)),
      q_(TimingQueries(rows, corpus->geometry.d_qk)),
      o_(size_t{rows} * corpus->geometry.d_v),
      m_(rows),
      l_(rows) {
  call_.chunks = chunks_;
  call_.q = {q_.data(), rows, corpus->geometry.d_qk};
  if (!selection.empty())
    call_.selection = {selection.data(), static_cast<uint32_t>(selection.size()), rows};
  call_.corpus = std::move(corpus);
}

absl::Status RepeatedRoute::Call(uint32_t layer) {
  call_.layer = layer % call_.corpus->geometry.layers;
  call_.deadline = context_.Deadline();
  return requester_.Attend(call_, {o_.data(), m_.data(), l_.data(), PartialDtype::kF32}, &report_);
}

absl::Status RepeatedRoute::Step(uint64_t& bytes_out, uint64_t& bytes_in, double& kernel_us) {
  bytes_out = bytes_in = 0;
  kernel_us = 0;
  for (uint32_t layer = 0; layer < call_.corpus->geometry.layers; ++layer) {
    CKV_RETURN_IF_ERROR(Call(layer));
    bytes_out += report_.bytes_sent;
    bytes_in += report_.bytes_received;
    kernel_us += double(report_.compute_ns_max) / 1e3;
  }
  return absl::OkStatus();
}

absl::StatusOr<Sample> RoutesAtOnce(const TaskContext& context, const CharacterizedLane& lane,
                                    const SampleKey& key, uint32_t chunk) {
  return AtOnce(context, key, [&](uint32_t thread) -> Round {
    auto route = std::make_shared<RepeatedRoute>(context, lane, context.target->corpus,
                                                 std::vector<ChunkUse>{{chunk, 0}}, key.query_rows);
    return [route, thread](uint32_t round) { return route->Call(thread + round); };
  });
}

absl::StatusOr<Sample> FetchesAtOnce(const TaskContext& context, const CharacterizedLane& lane,
                                     const SampleKey& key, uint32_t chunk) {
  return AtOnce(context, key, [&](uint32_t thread) -> Round {
    return [&context, &lane, chunk, thread](uint32_t round) {
      const uint32_t layer = (thread + round) % context.target->corpus->geometry.layers;
      FetchCall fetch;
      fetch.corpus = context.target->corpus;
      fetch.chunk_begin = chunk;
      fetch.chunk_end = chunk + 1;
      fetch.tensor_begin = layer;
      fetch.tensor_end = layer + 1;
      fetch.deadline = context.Deadline();
      return lane.requester->Fetch(fetch, [](const FetchedRows&) { return absl::OkStatus(); });
    };
  });
}

uint32_t ElbowOf(const TimesAtOnce& times) {
  uint32_t elbow = 0;
  for (const auto& [count, us] : times) {
    if (us > 2 * times.front().second) break;
    elbow = count;
  }
  return elbow;
}

void MeasureElbows(const TaskContext& context, Profile& profile) {
  CharacterizeOptions options = *context.options;
  options.parallel_time_max = kElbowTime;
  TaskContext shorter = context;
  shorter.options = &options;
  const uint32_t chunk = context.target->sizes.back();
  const uint64_t tokens = TokensOf(*context.target, chunk);
  for (size_t i = 0; i < context.target->lanes.size(); ++i) {
    const CharacterizedLane& lane = context.target->lanes[i];
    TimesAtOnce routes, fetches;
    for (const uint32_t count : kElbowCalls) {
      const SampleKey route = {Sweep::kFanIn, lane.fabric, context.target->heads, tokens, count};
      const SampleKey fetch = {Sweep::kStaging, lane.fabric, 0, tokens, count};
      const auto routed = RoutesAtOnce(shorter, lane, route, chunk);
      const auto fetched = FetchesAtOnce(shorter, lane, fetch, chunk);
      if (!routed.ok() || !fetched.ok()) break;
      routes.emplace_back(count, routed->us);
      fetches.emplace_back(count, fetched->us);
    }
    profile.lanes[i].route_elbow = ElbowOf(routes);
    profile.lanes[i].fetch_elbow = ElbowOf(fetches);
  }
}

}  // namespace ckv
