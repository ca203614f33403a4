// The sweeps, each along one axis of the paper's figures (arXiv:2606.01502):
//   fan-in, congestion   several threads route at once, over and over (at_once.h)
//   staging              the same with fetches of one layer
//   kernel, payload      single routes by TimeRoute, whose time in the kernel is known apart
//   scatter, gather      a step of all layers: routes one after another, or one fetch of all
//   store                routes of a selection of more and more chunks

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "client/tools/characterize/at_once.h"
#include "client/tools/characterize/target_calibrator.h"
#include "client/tools/characterize/tasks.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Steps of all layers, and kernels of thousands of rows, take milliseconds each: fewer runs do.
constexpr uint32_t kLongRunsMax = 5;
// Query rows of congested routes: a vector, a decode batch, and a large one (figure 7).
constexpr uint32_t kFlowRows[] = {1, 256, 1024};
// Query heads of the models whose kernel time figure 4(b) has: V2-Lite's and V3's.
constexpr uint32_t kKernelHeads[] = {16, 128};
// A payload's bandwidth follows from the times of these: the first for the probe (Table 1).
constexpr uint32_t kPayloadRows[] = {1, 1024};

// Repeats the call, after one run that does not count.
absl::StatusOr<Sample> Repeated(const TaskContext& context, const SampleKey& key, uint32_t runs,
                                const std::function<absl::Status()>& call) {
  std::vector<double> us;
  for (uint32_t run = 0; run <= runs; ++run) {
    const Instant begin = context.clock->Now();
    CKV_RETURN_IF_ERROR(call());
    if (run > 0) us.push_back(UsSince(begin, *context.clock));
  }
  Sample sample = {.key = key, .runs = runs, .spread = QuartileRatio(us)};
  sample.error_us = TrimmedMeanError(us);
  sample.us = TrimmedMean(std::move(us));
  return sample;
}

void AddParallel(const TaskContext& context, const CharacterizedLane& lane,
                 std::vector<Task>& tasks) {
  const uint32_t smallest = context.target->sizes.front(), largest = context.target->sizes.back();
  const uint64_t tokens = TokensOf(*context.target, largest);
  const auto add_routes = [&](Sweep sweep, uint32_t chunk, uint32_t rows, uint32_t count) {
    const SampleKey key = {sweep, lane.fabric, rows, TokensOf(*context.target, chunk), count};
    tasks.push_back({key, [context, &lane, key, chunk](uint32_t) {
                       return RoutesAtOnce(context, lane, key, chunk);
                     }});
  };
  for (const uint32_t count : context.options->parallel) {
    add_routes(Sweep::kFanIn, largest, context.target->heads, count);
    // The least kernel, so that the link is what they share.
    for (const uint32_t rows : kFlowRows) add_routes(Sweep::kCongestion, smallest, rows, count);
    const SampleKey fetches = {Sweep::kStaging, lane.fabric, 0, tokens, count};
    tasks.push_back({fetches, [context, &lane, fetches, largest](uint32_t) {
                       return FetchesAtOnce(context, lane, fetches, largest);
                     }});
  }
}

// The rows of 1, 2, 4 and more requesters in one call, as a holder computes them in one batch.
void AddKernel(const TaskContext& context, const CharacterizedLane& lane,
               std::vector<Task>& tasks) {
  const uint32_t largest = context.target->sizes.back();
  for (const uint32_t heads : kKernelHeads) {
    for (uint32_t count = 1; count * heads <= context.options->kernel_rows_max; count *= 2) {
      const SampleKey key = {Sweep::kKernel, lane.fabric, heads, TokensOf(*context.target, largest),
                             count};
      tasks.push_back(
          {key, [context, &lane, key, largest](uint32_t runs) -> absl::StatusOr<Sample> {
             const uint32_t few = std::min(runs, kLongRunsMax);
             const TimingCall call = {.corpus = context.target->corpus,
                                      .chunk = largest,
                                      .query_rows = key.query_rows * key.parallel,
                                      .pace = {few, kTimingMin},
                                      .deadline = context.Deadline()};
             CKV_ASSIGN_OR_RETURN(const RouteTiming timing,
                                  TimeRoute(*lane.requester, call, *context.clock));
             return SampleOfRoute(key, timing, few);
           }});
    }
  }
}

// The rows of all layers, in one call.
absl::StatusOr<Sample> Gather(const TaskContext& context, const CharacterizedLane& lane,
                              const SampleKey& key, std::span<const int32_t> selection,
                              uint32_t runs) {
  const CharacterizeTarget& target = *context.target;
  const std::vector<std::span<const int32_t>> layers(target.corpus->geometry.layers, selection);
  std::vector<std::byte> rows(selection.size() * target.corpus->geometry.row_bytes());
  return Repeated(context, key, std::min(runs, kLongRunsMax), [&] {
    SelectionCall call;
    call.corpus = target.corpus;
    call.chunk_begin = target.spread[0];
    call.chunk_end = target.spread[0] + key.parallel;
    call.indices = layers;
    call.deadline = context.Deadline();
    return lane.requester->FetchSelection(call, [&rows](uint32_t) { return std::span(rows); });
  });
}

// The chosen rows of the first chunks of `spread`, in place at their holders.
absl::StatusOr<Sample> Scatter(const TaskContext& context, const CharacterizedLane& lane,
                               const SampleKey& key, std::span<const int32_t> selection,
                               uint32_t runs) {
  std::vector<ChunkUse> uses;
  for (uint32_t i = 0; i < key.parallel; ++i) uses.push_back({context.target->spread[i], 0});
  RepeatedRoute route(context, lane, context.target->corpus, std::move(uses), key.query_rows,
                      selection);
  uint64_t bytes_out = 0, bytes_in = 0;
  std::vector<double> kernel_us;
  CKV_ASSIGN_OR_RETURN(Sample sample, Repeated(context, key, std::min(runs, kLongRunsMax), [&] {
                         return route.Step(bytes_out, bytes_in, kernel_us.emplace_back());
                       }));
  sample.bytes_out = bytes_out;
  sample.bytes_in = bytes_in;
  sample.kernel_us = TrimmedMean(std::move(kernel_us));
  return sample;
}

void AddScatter(const TaskContext& context, const CharacterizedLane& lane,
                std::vector<Task>& tasks) {
  const CharacterizeTarget& target = *context.target;
  for (const uint32_t wanted : kSelectedRows) {
    for (uint32_t count = 1; count <= target.spread.size(); ++count) {
      const auto selection =
          std::make_shared<const std::vector<int32_t>>(ChooseRows(target, count, wanted));
      // Smaller chunks give all of their rows, which is the same for all larger budgets.
      if (selection->size() < wanted && wanted != kSelectedRows[0]) continue;
      const SampleKey scatter = {Sweep::kScatter, lane.fabric, target.heads, selection->size(),
                                 count};
      tasks.push_back({scatter, [context, &lane, scatter, selection](uint32_t runs) {
                         return Scatter(context, lane, scatter, *selection, runs);
                       }});
      const SampleKey gather = {Sweep::kGather, lane.fabric, 0, selection->size(), count};
      tasks.push_back({gather, [context, &lane, gather, selection](uint32_t runs) {
                         return Gather(context, lane, gather, *selection, runs);
                       }});
    }
  }
}

// Rows chosen from 1, 2, 4 and more chunks of one holder.
void AddStore(const TaskContext& context, const CharacterizedLane& lane, std::vector<Task>& tasks) {
  const SideCorpus& store = context.target->store;
  if (store.corpus == nullptr) return;
  const uint32_t tokens = store.corpus->chunks[store.chunks[0]].token_count;
  for (const uint32_t wanted : kSelectedRows) {
    if (wanted > tokens) continue;
    for (uint32_t count = 1; count <= store.chunks.size(); count *= 2) {
      const auto selection =
          std::make_shared<const std::vector<int32_t>>(ChooseOf(uint64_t{tokens} * count, wanted));
      const SampleKey key = {Sweep::kStore, lane.fabric, context.target->heads, wanted, count};
      tasks.push_back(
          {key, [context, &lane, key, selection](uint32_t runs) -> absl::StatusOr<Sample> {
             std::vector<ChunkUse> uses;
             for (uint32_t i = 0; i < key.parallel; ++i)
               uses.push_back({context.target->store.chunks[i], 0});
             RepeatedRoute route(context, lane, context.target->store.corpus, std::move(uses),
                                 key.query_rows, *selection);
             std::vector<double> kernel;
             uint64_t bytes_out = 0, bytes_in = 0;
             CKV_ASSIGN_OR_RETURN(Sample sample, Repeated(context, key, runs, [&] {
                                    kernel.emplace_back();
                                    return route.Step(bytes_out, bytes_in, kernel.back());
                                  }));
             sample.bytes_out = bytes_out;
             sample.bytes_in = bytes_in;
             sample.kernel_us = TrimmedMean(std::move(kernel));
             return sample;
           }});
    }
  }
}

void AddPayloads(const TaskContext& context, const CharacterizedLane& lane,
                 std::vector<Task>& tasks) {
  for (const SideCorpus& side : context.target->payloads) {
    for (const PartialDtype wire : {PartialDtype::kBf16, PartialDtype::kF32}) {
      const Geometry& geometry = side.corpus->geometry;
      const uint64_t bytes =
          geometry.query_row_bytes() + geometry.partial_row_bytes(wire == PartialDtype::kF32);
      for (const uint32_t rows : kPayloadRows) {
        const SampleKey key = {Sweep::kPayload, lane.fabric, rows, bytes, 1};
        tasks.push_back(
            {key, [context, &lane, &side, wire, key](uint32_t runs) -> absl::StatusOr<Sample> {
               const TimingCall call = {.corpus = side.corpus,
                                        .chunk = side.chunks[0],
                                        .query_rows = key.query_rows,
                                        .wire = wire,
                                        .pace = {runs, kTimingMin},
                                        .deadline = context.Deadline()};
               CKV_ASSIGN_OR_RETURN(const RouteTiming timing,
                                    TimeRoute(*lane.requester, call, *context.clock));
               return SampleOfRoute(key, timing, runs);
             }});
      }
    }
  }
}

}  // namespace

std::vector<Task> SweepTasks(const TaskContext& context) {
  std::vector<Task> tasks;
  for (const CharacterizedLane& lane : context.target->lanes) {
    // A kernel's time does not depend on how its rows came.
    if (&lane == &context.target->lanes.front()) AddKernel(context, lane, tasks);
    AddParallel(context, lane, tasks);
    AddScatter(context, lane, tasks);
    AddStore(context, lane, tasks);
    AddPayloads(context, lane, tasks);
  }
  return tasks;
}

}  // namespace ckv
