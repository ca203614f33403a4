// The measurements of a characterization: the grid's, which are compared with each other and with
// the model, and the sweeps', each along one axis.

#pragma once

#include <cstdint>
#include <vector>

#include "client/paged/paged_cache.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/grid.h"
#include "client/tools/characterize/run.h"
#include "proto/base/clock.h"

namespace ckv {

// Everything that a measurement uses. Borrowed; tasks use it when they run.
struct TaskContext {
  const CharacterizeTarget* target = nullptr;
  const CharacterizeOptions* options = nullptr;
  const PagedCache* cache = nullptr;  // has room for the largest chunk; the grid's only
  Clock* clock = nullptr;

  Instant Deadline() const { return clock->Now() + options->call_timeout; }
};

// The sample of a route that was timed with `runs` runs.
Sample SampleOfRoute(const SampleKey& key, const RouteTiming& timing, uint32_t runs);

// Routes, fetches, prefills and local attention. Times that are compared are of the same round.
// For a chunk, that is its prefill and fetches. At each number of rows, that is attention here and
// the routes.
std::vector<Task> GridTasks(const TaskContext& context);

// Fan-in, kernel, scatter, gather, staging, congestion, store and payload. A sweep that the target
// has no chunks for is left out.
std::vector<Task> SweepTasks(const TaskContext& context);

}  // namespace ckv
