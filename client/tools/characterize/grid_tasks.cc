#include <algorithm>
#include <memory>

#include "client/tools/characterize/target_calibrator.h"
#include "client/tools/characterize/tasks.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Rounds of the grid in which a prefill is measured, at least: one takes as long as all routes.
constexpr uint32_t kPrefillRounds = 4;

// In production, rows are in no cache. Neither are the grid's, if they can be pushed out.
RowCaching GridCaching(const CharacterizeTarget& target) {
  return CachingsOf(!target.push_out.empty()).back();
}

absl::StatusOr<Sample> MeasureRoute(const TaskContext& context, const CharacterizedLane& lane,
                                    const SampleKey& key, uint32_t chunk, uint32_t runs) {
  const TimingCall call = {.corpus = context.target->corpus,
                           .chunk = chunk,
                           .query_rows = key.query_rows,
                           .pace = {runs, kTimingMin},
                           .caching = GridCaching(*context.target),
                           .push_out = context.target->push_out,
                           .deadline = context.Deadline()};
  CKV_ASSIGN_OR_RETURN(const RouteTiming timing, TimeRoute(*lane.requester, call, *context.clock));
  return SampleOfRoute(key, timing, runs);
}

// Fetches into a paged cache of its own, at another position than the chunk's.
absl::StatusOr<Sample> MeasureFetch(const TaskContext& context, const CharacterizedLane& lane,
                                    const SampleKey& key, uint32_t chunk, uint32_t runs) {
  const TimingCall call = {.corpus = context.target->corpus,
                           .chunk = chunk,
                           .pace = {.run_count = runs},
                           .deadline = context.Deadline()};
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<PagedCache> cache,
                       CacheForTiming(context.target->corpus->geometry, key.tokens));
  CKV_ASSIGN_OR_RETURN(const double us,
                       TimeFetchInto(*lane.requester, call, *cache, *context.clock));
  return Sample{.key = key, .us = us, .runs = runs};
}

void AddChunk(const TaskContext& context, uint32_t chunk, std::vector<Task>& tasks) {
  const CharacterizeTarget& target = *context.target;
  const uint64_t tokens = TokensOf(target, chunk);
  if (target.prefill) {
    const SampleKey key = {Sweep::kLocal, "", 0, tokens, 1};
    tasks.push_back({key,
                     [context, key](uint32_t) -> absl::StatusOr<Sample> {
                       CKV_ASSIGN_OR_RETURN(const double us, context.target->prefill(key.tokens));
                       return Sample{.key = key, .us = us, .runs = 1};
                     },
                     std::max(1u, context.options->run_count / kPrefillRounds)});
  }
  for (const CharacterizedLane& lane : target.lanes) {
    const SampleKey key = {Sweep::kFetch, lane.fabric, 0, tokens, 1};
    tasks.push_back({key, [context, &lane, key, chunk](uint32_t runs) {
                       return MeasureFetch(context, lane, key, chunk, runs);
                     }});
  }
}

void AddRows(const TaskContext& context, uint32_t chunk, uint32_t rows, uint32_t cell,
             std::vector<Task>& tasks) {
  const CharacterizeTarget& target = *context.target;
  const uint64_t tokens = TokensOf(target, chunk);
  const SampleKey here = {Sweep::kHere, "", rows, tokens, 1};
  tasks.push_back({here,
                   [context, here](uint32_t runs) -> absl::StatusOr<Sample> {
                     const double us = TimeAttendHere(*context.cache, here.tokens, here.query_rows,
                                                      GridCaching(*context.target),
                                                      {runs, kTimingMin}, *context.clock);
                     return Sample{.key = here, .us = us, .runs = runs};
                   },
                   1, cell});
  for (const CharacterizedLane& lane : target.lanes) {
    const SampleKey key = {Sweep::kRoute, lane.fabric, rows, tokens, 1};
    tasks.push_back({key,
                     [context, &lane, key, chunk](uint32_t runs) {
                       return MeasureRoute(context, lane, key, chunk, runs);
                     },
                     1, cell});
  }
}

}  // namespace

Sample SampleOfRoute(const SampleKey& key, const RouteTiming& timing, uint32_t runs) {
  return {.key = key,
          .us = timing.us,
          .runs = runs,
          .bytes_out = timing.bytes_out,
          .bytes_in = timing.bytes_in,
          .kernel_us = timing.compute_us};
}

std::vector<Task> GridTasks(const TaskContext& context) {
  std::vector<Task> tasks;
  uint32_t cell = 0;
  for (const uint32_t chunk : context.target->sizes) {
    AddChunk(context, chunk, tasks);
    for (const uint32_t rows : context.options->query_rows)
      AddRows(context, chunk, rows, ++cell, tasks);
  }
  return tasks;
}

}  // namespace ckv
